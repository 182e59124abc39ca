/*
 * The mesh: hops, and when and in which order messages arrive. Nobody sleeps here: a message that is still under way
 * for an hour may be read by nobody, and the board takes it all the same.
 */
#include "../shared/mesh.h"

#include <errno.h>
#include <string.h>

#include "check.h"

#define NEAR 1  /* processes: the reader is 2, on tile 0; NEAR is on tile 1, FAR on tile 15 */
#define READER 2
#define FAR 3

static struct shared_memory *shared;

static void put_on(uint32_t process, uint32_t tile)
{
    atomic_store(&shared->locations[process].word,
                 place_pack((struct place){.state = PLACE_RUNNING, .tile = (uint8_t)tile}));
}

static void test_sizes(void)
{
    CHECK(mesh_declare(shared, "4x4", 1000, 16) == 0 && mesh_is_declared(shared));
    CHECK(shared->mesh_width == 4 && shared->mesh_height == 4 && shared->hop_ns == 1000);
    CHECK(mesh_declare(shared, "3x5", 1000, 16) == -EINVAL);
    CHECK(mesh_declare(shared, "4", 1000, 1) == -EINVAL && mesh_declare(shared, "4x", 1000, 1) == -EINVAL);
    CHECK(mesh_declare(shared, "4x4x4", 1000, 1) == -EINVAL && mesh_declare(shared, "x4", 1000, 1) == -EINVAL);
    CHECK(mesh_declare(shared, "4x4", 0, 1) == -EINVAL && mesh_declare(shared, "4x4", HOP_MOST_NS + 1, 1) == -EINVAL);
}

static void test_hops(void)
{
    CHECK(mesh_hops(shared, 0, 15) == 6 && mesh_hops(shared, 15, 0) == 6);
    CHECK(mesh_hops(shared, 5, 5) == 0 && mesh_hops(shared, 5, 6) == 1 && mesh_hops(shared, 5, 9) == 1);
    CHECK(mesh_hops(shared, 3, 4) == 4);
}

static void test_due(void)
{
    int64_t before = shared_now();

    put_on(READER, 0);
    put_on(NEAR, 1);
    put_on(FAR, 15);
    CHECK(mesh_due(shared, FAR, READER) >= before + 6 * (int64_t)shared->hop_ns);
    CHECK(mesh_due(shared, FAR, CONSOLE_PROCESS) == 0 && mesh_due(shared, CONSOLE_PROCESS, FAR) == 0);
    CHECK(mesh_due(shared, READER, READER) == 0);
    shared->here = 8; /* tile 15 is another host's */
    CHECK(mesh_due(shared, FAR, READER) == 0 && mesh_due(shared, READER, FAR) == 0);
    shared->here = 16;
}

/* The head of a port holds up the rest, so that nothing of one sender overtakes, wherever that has moved. */
static void test_order(void)
{
    struct endpoint *endpoint = &shared->endpoints[READER];
    struct mail mail;

    shared->hop_ns = HOP_MOST_NS;
    CHECK(mailbox_put(shared, READER, 3, FAR, "far", 3) == 0 && mailbox_put(shared, READER, 3, NEAR, "near", 4) == 0);
    endpoint->ports[3].mails[0].due += 3600ll * 1000000000;
    CHECK(!mailbox_receive(shared, READER, 3, &mail));
    CHECK(endpoint_next_due(endpoint) == endpoint->ports[3].mails[0].due);
    endpoint_look_again(endpoint);
    CHECK(endpoint_next_due(endpoint) != 0); /* it is not past */
    endpoint->due = endpoint->ports[3].mails[0].due = 1;
    endpoint_look_again(endpoint);
    CHECK(endpoint_next_due(endpoint) == 0);
    CHECK(mailbox_receive(shared, READER, 3, &mail) && mail.from == FAR);
    CHECK(mailbox_take(shared, READER, 3, &mail) && mail.from == NEAR);
    CHECK(!mailbox_take(shared, READER, 3, &mail));
}

static void test_bulk_and_signals(void)
{
    struct endpoint *endpoint = &shared->endpoints[READER];
    uint8_t bytes[8] = {0};

    CHECK(portal_allow(shared, READER, 1, FAR, 7, sizeof(bytes)) == 0);
    CHECK(portal_put(shared, READER, 1, FAR, 7, bytes, sizeof(bytes)) == sizeof(bytes));
    endpoint->portals[1].due[0] += 3600ll * 1000000000;
    CHECK(portal_take(shared, READER, 1, bytes, sizeof(bytes)) == 0 && endpoint_next_due(endpoint) != 0);
    atomic_store(&shared->locations[FAR].word, place_pack((struct place){.state = PLACE_ENDED}));
    CHECK(portal_take(shared, READER, 1, bytes, sizeof(bytes)) == 0); /* its earlier messages are still to come */
    endpoint->portals[1].due[0] = 1;
    CHECK(portal_take(shared, READER, 1, bytes, sizeof(bytes)) == sizeof(bytes));
    put_on(FAR, 15);
    CHECK(sync_signal(shared, FAR, 2, 1u << READER) == 0);
    endpoint->signal_due[2][FAR] += 3600ll * 1000000000;
    CHECK(sync_take(shared, READER, 2, 1u << FAR) == 0);
    endpoint->signal_due[2][FAR] = 1;
    CHECK(sync_take(shared, READER, 2, 1u << FAR) == 1);
}

int main(void)
{
    CHECK(shared_create(16, 2, &shared) >= 0);
    CHECK(mesh_hops(shared, 0, 15) == 0 && mesh_due(shared, FAR, READER) == 0 && !mesh_is_declared(shared));
    test_sizes();
    test_hops();
    test_due();
    test_order();
    test_bulk_and_signals();
    return 0;
}
