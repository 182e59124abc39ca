/* See admission.h. The list has the newest session first. */
#include "admission.h"

#include <stdbool.h>

#include "session.h"

static void make_room(const struct in_addr *source, int limit)
{
    struct session *oldest = NULL;
    int count = 0;

    for (struct session *session = session_list; session; session = session->next)
        if (!session->authenticated && (!source || session->source.s_addr == source->s_addr)) {
            oldest = session;
            count++;
        }
    if (count >= limit)
        session_free(oldest);
}

void admission_make_room(struct in_addr source)
{
    make_room(&source, ADMISSION_SOURCE_MAX);
    make_room(NULL, ADMISSION_MAX);
}
