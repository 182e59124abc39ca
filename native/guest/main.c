/*
 * wherry-guest: the first program of a virtual machine that is a node; /init of its RAM disk.
 *
 *   kernel's command line     wherry.name=NODE wherry.address=A.B.C.D/PREFIX wherry.mac=AA:BB:CC:DD:EE:FF
 *                             wherry.mtu=BYTES wherry.user=UID:GID:GROUPS [wherry.checksum=off]
 *   RAM disk, /given          key               the node's key, which only root can read there
 *                             hosts             the text of /etc/hosts
 *                             files             the user's directories (user_files.h), if some are served
 *   or QEMU's fw_cfg          opt/wherry/       the same
 *
 * It loads the drivers that the machine's devices ask for, puts the root together, sets the network up and becomes
 * wherry-init, which then offers the same as in a container.
 *
 *   wherry-guest --join DIRECTORY
 *
 * On a machine that booted from a disk of its own: DIRECTORY has `description`, with the words of the command line,
 * `key`, `hosts`, and `init`, the agent, which becomes the first process of a PID namespace of its own.
 *
 * Invariant: either wherry-init runs as the first process with everything in its place, or the reason is the last line
 * on the console and the machine is off.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest.h"
#include "kernel_modules.h"
#include "network.h"
#include "root_filesystem.h"
#include "user_files.h"
#include "util.h"
#include "wherry/process.h"

#define AGENT "/usr/lib/wherry/init"
#define CONTROL_PORT 7310 /* of wherry-init: wherry.node.protocol */
#define FW_CFG "/sys/firmware/qemu_fw_cfg/by_name/opt/wherry/"
#define GIVEN "/given/"          /* of the RAM disk, which is out of reach when the root is entered */
#define KEY "/dev/wherry-key"    /* in the kernel's own tree, where only root can write */

/* Messages go to the console, also when the RAM disk brought no /dev/console for the kernel to open. */
static void open_console(void)
{
    int fd = open("/dev/console", O_RDWR);

    for (int stream = 0; fd >= 0 && stream < 3; stream++)
        dup2(fd, stream);
    if (fd > 2)
        close(fd);
}

static void mount_kernel_trees(void)
{
    static const char *const trees[][2] = {{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}};

    for (size_t i = 0; i < sizeof trees / sizeof *trees; i++) {
        mkdir(trees[i][1], 0755);
        if (mount(trees[i][0], trees[i][1], trees[i][0], MS_NOSUID, NULL) < 0)
            guest_fail("mount", trees[i][1], errno);
        if (i == 0)
            open_console();
    }
}

/* The value of a word NAME=VALUE on the command line; NULL when it is not there. The caller frees it. */
static char *find_word(const char *line, const char *name)
{
    size_t length = strlen(name);

    for (const char *at = line; (at = strstr(at, name)); at += length)
        if ((at == line || at[-1] == ' ') && at[length] == '=')
            return strndup(at + length + 1, strcspn(at + length + 1, " \n"));
    return NULL;
}

static char *need_word(const char *line, const char *name)
{
    char *value = find_word(line, name);

    if (!value)
        guest_fail("find on the kernel's command line the word", name, ENOENT);
    return value;
}

static struct guest read_description(const char *path)
{
    struct guest guest = {0};
    char *line = guest_read(path), *address, *checksum, *mac, *mtu, *slash;

    if (!line)
        guest_fail("read", path, errno);
    guest.name = need_word(line, "wherry.name");
    guest.user = need_word(line, "wherry.user");
    mtu = need_word(line, "wherry.mtu");
    guest.mtu = atoi(mtu);
    checksum = find_word(line, "wherry.checksum");
    guest.checksum_offload = !checksum || strcmp(checksum, "off") != 0;
    mac = need_word(line, "wherry.mac");
    if (sscanf(mac, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", guest.mac, guest.mac + 1, guest.mac + 2, guest.mac + 3,
               guest.mac + 4, guest.mac + 5) != GUEST_MAC)
        guest_fail("use the hardware address", mac, EINVAL);
    address = need_word(line, "wherry.address");
    slash = strchr(address, '/');
    if (!slash)
        guest_fail("use the address", address, EINVAL);
    *slash = 0;
    guest.prefix = atoi(slash + 1);
    if (inet_pton(AF_INET, address, &guest.address) != 1 || guest.prefix < 8 || guest.prefix > 30)
        guest_fail("use the address", address, EINVAL);
    free(address);
    free(checksum);
    free(mac);
    free(mtu);
    free(line);
    return guest;
}

/* Reads the guest's data, wherever they are. */
static void read_given(struct guest *guest)
{
    guest->key = guest_read(GIVEN "key");
    guest->hosts = guest_read(guest->key ? GIVEN "hosts" : FW_CFG "hosts/raw");
    guest->files = guest_read(guest->key ? GIVEN "files" : FW_CFG "files/raw");
    if (!guest->key)
        guest->key = guest_read(FW_CFG "key/raw");
    if (!guest->key || !guest->hosts)
        guest_fail("read", guest->key ? "the hosts file" : "the key", errno);
}

static void write_key(const struct guest *guest)
{
    int key = open(KEY, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (key < 0 || process_write_all(key, guest->key, strlen(guest->key)) < 0)
        guest_fail("write", KEY, errno);
    close(key);
}

static void write_identity(const struct guest *guest)
{
    if (sethostname(guest->name, strlen(guest->name)) < 0)
        guest_fail("set the name", guest->name, errno);
    if (guest_write("/etc/hostname", guest->name) < 0 || guest_write("/etc/hosts", guest->hosts) < 0)
        guest_fail("write", "/etc/hosts", EIO);
}

static _Noreturn void become_agent(const struct guest *guest, char *agent, char *key_file)
{
    char where[INET_ADDRSTRLEN + 8];
    char *const argv[] = {agent, "--listen", where, "--key-file", key_file, "--user", guest->user, NULL};
    char *const envp[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", NULL};
    char text[INET_ADDRSTRLEN];

    inet_ntop(AF_INET, &guest->address, text, sizeof text);
    snprintf(where, sizeof where, "%s:%d", text, CONTROL_PORT);
    printf("wherry-guest: %s is at %s\n", guest->name, where);
    fflush(stdout);
    execve(agent, argv, envp);
    guest_fail("run", agent, errno);
}

static _Noreturn void boot(void)
{
    struct guest guest;

    mount_kernel_trees();
    guest = read_description("/proc/cmdline");
    kernel_modules_read("/modules/list");
    kernel_modules_load_for_devices();
    read_given(&guest);
    root_filesystem_enter();
    write_key(&guest);
    write_identity(&guest);
    network_up(&guest);
    user_files_mount(&guest);
    become_agent(&guest, AGENT, KEY);
}

static char *inside(const char *directory, const char *name)
{
    char *path;

    if (asprintf(&path, "%s/%s", directory, name) < 0)
        guest_fail("name", name, ENOMEM);
    return path;
}

/* As the panic of a machine whose first process is the agent: a node without one is no node. */
static _Noreturn void watch(pid_t agent)
{
    while (waitpid(agent, NULL, 0) < 0 && errno == EINTR)
        ;
    guest_fail("go on without", "the agent", ECHILD);
}

/* The programs of the machine's own system continue beside the node's processes. */
static int join(const char *directory)
{
    struct guest guest;
    pid_t watcher, agent;

    open_console();
    guest = read_description(inside(directory, "description"));
    guest.hosts = guest_read(inside(directory, "hosts"));
    if (!guest.hosts)
        guest_fail("read the hosts file in", directory, errno);
    write_identity(&guest);
    network_up(&guest);
    watcher = fork();
    if (watcher > 0)
        return 0;
    setsid();
    if (watcher < 0 || unshare(CLONE_NEWPID | CLONE_NEWNS) < 0)
        guest_fail("make", "namespaces for the node", errno);
    agent = fork();
    if (agent < 0)
        guest_fail("start", "the agent", errno);
    if (agent > 0)
        watch(agent);
    setsid();
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || mount("proc", "/proc", "proc", MS_NOSUID, NULL) < 0)
        guest_fail("mount", "/proc", errno);
    become_agent(&guest, inside(directory, "init"), inside(directory, "key"));
}

int main(int argc, char **argv)
{
    umask(022);
    if (getpid() == 1)
        boot();
    if (argc == 3 && strcmp(argv[1], "--join") == 0)
        return join(argv[2]);
    fputs("wherry-guest: it is the first program of a virtual machine, or: wherry-guest --join DIRECTORY\n", stderr);
    return 2;
}
