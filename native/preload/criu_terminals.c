/* Unread bytes of pseudo-terminals; see criu.c.
 *
 * `shown` is for the reader of the master, `typed` for those of the slave. All of it is taken out at the end of a dump,
 * noted, and put back at once, so that it is still there when the move is rolled back; a restore puts the same back.
 * The kernel has processed the bytes that it keeps for the slave: it has echoed them, sent signals for them, and noted
 * where lines end. So they go in with settings that change nothing (`plain`), and by TIOCSTI, as no call shows when the
 * kernel has processed bytes written to a master. A terminal that reads by lines gets a mark for the end of a line
 * without a newline, and bytes that would end one are quoted. Bytes that the kernel has not processed yet, as it keeps
 * only so much, are `behind`: they are written to the master when the settings are the program's again.
 */
#include "criu_terminals.h"

#include "proc.h"

#include <asm/ioctls.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum {
    LOOKED_AT = 4096 - 1, /* bytes for the slave that the kernel keeps when it has looked at them */
    MOST = 1 << 16,       /* bytes of one kind; the kernel has room for some 20 KiB */
    PIECE = 256,          /* larger ones the kernel keeps until all of one is read */
    PAUSE_NS = 100000,
    PAUSES = 2000,
    MARK = 4,     /* ends a line that has no newline, in `typed` */
    QUOTE = 0x16, /* before a byte that would end a line or quote, in `typed` */
    STOP = 0x13,
    SLAVES = 136, /* the kernel's device number of /dev/pts, which has room for all in its lower half */
};

/* Of poll(2). */
enum { HAS_CHANGED = 2, HAS_ROOM = 4, HAS_NO_SLAVE = 16 };

enum stopped { NOT_STOPPED, STOPPED_BY_BYTE /* as of Ctrl-S */, STOPPED_BY_CALL /* TCOOFF */ };

struct bytes {
    size_t count;
    unsigned char at[MOST];
};

struct terminal {
    unsigned index, stopped;
    int master;     /* of a dump; -1: none */
    bool has_slave; /* of a dump: a process has it open */
    bool is_new;    /* nobody has ever opened the slave, so the master's reader waits */
    size_t looked_at;
    struct bytes typed, behind, shown;
    struct terminal *next;
};

static struct terminal *all;
static int images = -1; /* of a dump */

static long control(int fd, unsigned long request, void *argument)
{
    return syscall(SYS_ioctl, fd, request, argument);
}

bool identify_terminal(int fd, unsigned *index, bool *is_master)
{
    struct stat status;
    unsigned device = 0, number;
    int kept = errno;
    bool is = !fstat(fd, &status) && S_ISCHR(status.st_mode) && !control(fd, TIOCGDEV, &device) &&
              (device >> 8 & 0xfff) == SLAVES;

    *index = (device & 0xff) | (device >> 12 & 0xfff00);
    *is_master = is && !control(fd, TIOCGPTN, &number);
    errno = kept;
    return is;
}

static struct terminal *find(unsigned index)
{
    struct terminal *one = all;

    while (one && one->index != index)
        one = one->next;
    return one;
}

static struct terminal *find_or_add(unsigned index)
{
    struct terminal *one = find(index);

    if (one || !(one = calloc(1, sizeof *one)))
        return one;
    one->index = index, one->master = -1, one->next = all;
    return all = one;
}

/* Prints that into the log of a dump, as CRIU does. In a restore CRIU prints which settings it could not set. */
static bool fails(const struct terminal *one, const char *why)
{
    int log = images < 0 ? -1 : (int)syscall(SYS_openat, AT_FDCWD, "dump.log", O_APPEND | O_WRONLY | O_CLOEXEC);

    if (log >= 0) {
        dprintf(log, "Error (wherry): terminal %u: %s\n", one->index, why);
        close(log);
    }
    errno = EIO;
    return false;
}

/* The note. */

static void tell(FILE *file, char kind, const struct bytes *bytes)
{
    fprintf(file, " %c", kind);
    for (size_t i = 0; i < bytes->count; i++)
        fprintf(file, "%02x", bytes->at[i]);
}

static bool note(const struct terminal *one)
{
    int fd = (int)syscall(SYS_openat, images, TERMINALS, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0600);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "a");
    bool is_noted;

    if (!file)
        return fails(one, TERMINALS " cannot be made");
    fprintf(file, "%u %u %d", one->index, one->stopped, one->is_new);
    tell(file, 't', &one->typed);
    tell(file, 'b', &one->behind);
    tell(file, 's', &one->shown);
    is_noted = fputc('\n', file) != EOF && !fflush(file) && !ferror(file);
    return (!fclose(file) && is_noted) || fails(one, TERMINALS " cannot be written");
}

static int hexadecimal(char digit)
{
    return digit >= '0' && digit <= '9' ? digit - '0' : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* Where the next word begins. NULL: it is damaged. */
static const char *learn_bytes(const char *word, char kind, struct bytes *bytes)
{
    if (!word || word[0] != ' ' || word[1] != kind)
        return NULL;
    for (word += 2; hexadecimal(word[0]) >= 0 && hexadecimal(word[1]) >= 0 && bytes->count < MOST; word += 2)
        bytes->at[bytes->count++] = (unsigned char)(hexadecimal(word[0]) << 4 | hexadecimal(word[1]));
    return word;
}

/* A line of the note; where the next one begins. NULL: it is damaged. */
static const char *learn_one(const char *line)
{
    int begin, is_new;
    unsigned index, stopped;
    struct terminal *one;

    if (sscanf(line, "%u %u %d%n", &index, &stopped, &is_new, &begin) != 3 || !(one = find_or_add(index)))
        return NULL;
    one->stopped = stopped;
    one->is_new = is_new;
    line = learn_bytes(line + begin, 't', &one->typed);
    line = learn_bytes(line, 'b', &one->behind);
    line = learn_bytes(line, 's', &one->shown);
    return line && *line == '\n' ? line + 1 : NULL;
}

void learn_terminals(int directory)
{
    char *text = contents(directory, TERMINALS);

    for (const char *line = text; line && *line;)
        if (!(line = learn_one(line))) {
            fprintf(stderr, "wherry: %s is damaged\n", TERMINALS);
            _exit(1);
        }
    free(text);
}

/* Settings. */

static bool reads_by_lines(const struct termios *settings)
{
    return (settings->c_lflag & ICANON) && !(settings->c_lflag & EXTPROC);
}

/* Bytes that go in with them stay as they are, but that newlines end lines where the program reads by lines. */
static struct termios plain(const struct termios *settings)
{
    struct termios changed = *settings;

    changed.c_iflag = changed.c_oflag = 0;
    changed.c_lflag &= ICANON | EXTPROC;
    memset(changed.c_cc, _POSIX_VDISABLE, sizeof changed.c_cc);
    changed.c_cc[VMIN] = 1;
    return changed;
}

/* False when the kernel did not take them, as of a terminal whose settings are locked. */
static bool set(int fd, const struct termios *settings)
{
    struct termios now;

    return !tcsetattr(fd, TCSANOW, settings) && !tcgetattr(fd, &now) && now.c_iflag == settings->c_iflag &&
           now.c_oflag == settings->c_oflag && now.c_lflag == settings->c_lflag &&
           !memcmp(now.c_cc, settings->c_cc, VEOL2 + 1);
}

/* Whether poll(2) reports an event. */
static bool tells(int fd, short event)
{
    struct {
        int fd;
        short events, told;
    } one = {.fd = fd, .events = event};
    const struct timespec at_once = {.tv_sec = 0};

    return syscall(SYS_ppoll, &one, 1UL, &at_once, NULL, 0UL) == 1 && (one.told & event);
}

static bool type(int slave, unsigned char byte)
{
    return !control(slave, TIOCSTI, &byte);
}

/* Its slave, opened once more. -1 with errno. */
static int open_slave(int master)
{
    return (int)control(master, TIOCGPTPEER, (void *)(O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
}

/* Whether the kernel lets input be put into a terminal at all: some from Linux 6.2 on do so only if they are set to. */
static bool can_type(void)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY), slave = master < 0 || unlockpt(master) ? -1 : open_slave(master);
    bool can = slave >= 0 && type(slave, 'x');

    close(slave);
    close(master);
    return can;
}

/* Taking it out. */

static void put(struct bytes *bytes, unsigned char byte)
{
    if (bytes->count < MOST)
        bytes->at[bytes->count++] = byte;
}

/* Puts in the bytes that one read of the slave gave. */
static void put_typed(struct terminal *one, const unsigned char *bytes, size_t count, bool is_quoted, bool is_line)
{
    bool has_newline = is_line && count && bytes[count - 1] == '\n';

    for (size_t i = 0; i < count; i++) {
        bool is_special = bytes[i] == '\n' || bytes[i] == MARK || bytes[i] == QUOTE;

        if (one->looked_at == LOOKED_AT) {
            put(&one->behind, bytes[i]);
            continue;
        }
        if (is_quoted && is_special && !(has_newline && i + 1 == count))
            put(&one->typed, QUOTE);
        put(&one->typed, bytes[i]);
        one->looked_at++;
    }
    if (is_line && !has_newline)
        put(&one->typed, MARK), one->looked_at++;
}

/* By lines or, where the slave reads so now, all that there is. */
static bool take_typed(struct terminal *one, int slave, bool is_quoted, bool is_by_lines)
{
    unsigned char bytes[LOOKED_AT + 1];

    while (one->typed.count < MOST && one->behind.count < MOST) {
        ssize_t got = syscall(SYS_read, slave, bytes, sizeof bytes);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 || (!got && !is_by_lines)) /* none of VMIN 0 */
            return !got || errno == EAGAIN;
        put_typed(one, bytes, (size_t)got, is_quoted, is_by_lines);
    }
    return false;
}

/* With bytes that the kernel has not echoed yet, as there was no room. */
static bool take_shown(struct terminal *one, int slave)
{
    struct bytes *shown = &one->shown;
    size_t before;

    do {
        before = shown->count;
        syscall(SYS_write, slave, "", 0); /* writes the bytes to be echoed */
        while (shown->count < MOST) {
            ssize_t got = syscall(SYS_read, one->master, shown->at + shown->count, MOST - shown->count);

            if (got <= 0 && errno != EINTR)
                break;
            shown->count += got > 0 ? (size_t)got : 0;
        }
        if (errno != EAGAIN || shown->count == MOST)
            return false;
    } while (shown->count > before);
    return true;
}

/* Whether output is stopped, of which the kernel reports only that it takes none. Lets it continue. */
static unsigned resume(int slave, const struct termios *settings)
{
    struct termios changed = *settings;
    bool is_by_byte;

    if (tells(slave, HAS_ROOM))
        return NOT_STOPPED;
    changed.c_iflag &= ~(tcflag_t)IXON; /* without it nothing would let it continue, so the kernel does */
    is_by_byte = (settings->c_iflag & IXON) && set(slave, &changed) && tells(slave, HAS_ROOM);
    set(slave, settings);
    if (is_by_byte)
        return STOPPED_BY_BYTE;
    return !control(slave, TCXONC, (void *)TCOON) && tells(slave, HAS_ROOM) ? STOPPED_BY_CALL : NOT_STOPPED;
}

static bool take(struct terminal *one, int slave, const struct termios *settings)
{
    struct termios changed = plain(settings), locked = {.c_iflag = 0}, none = {.c_iflag = 0};
    bool is_by_lines = reads_by_lines(settings);
    int waiting = 0;

    if (control(slave, TIOCGLCKTRMIOS, &locked) || memcmp(&locked, &none, sizeof locked))
        return fails(one, "its settings are locked");
    if (!take_shown(one, slave))
        return fails(one, "its output cannot be read");
    one->stopped = resume(slave, settings);
    control(slave, FIONREAD, &waiting);
    if (waiting > LOOKED_AT / 2)
        set(slave, &changed); /* there may be some that the kernel has not looked at, which it is not to do now */
    if (!take_typed(one, slave, is_by_lines, is_by_lines) || !take_shown(one, slave))
        return fails(one, "it cannot be read");
    changed.c_lflag &= ~(tcflag_t)ICANON;
    if (is_by_lines && (!set(slave, &changed) || !take_typed(one, slave, true, false)))
        return fails(one, "the line that was begun cannot be read");
    return true;
}

/* Putting it back. */

/* Writes in pieces, each when the kernel's worker has moved on the piece before. Whether there was room for all. */
static bool fill(int fd, const struct bytes *bytes)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    size_t done = 0;

    for (int pauses = 0; done < bytes->count && pauses < PAUSES; pauses++) {
        size_t piece = bytes->count - done < PIECE ? bytes->count - done : PIECE;
        ssize_t got = syscall(SYS_write, fd, bytes->at + done, piece);

        if (got < 0 && errno != EAGAIN && errno != EINTR)
            break;
        if (got > 0)
            done += (size_t)got, pauses = 0;
        else
            nanosleep(&pause, NULL);
    }
    return done == bytes->count;
}

static bool put_back(const struct terminal *one, int master, int slave, const struct termios *settings)
{
    struct termios changed = plain(settings);
    bool is_done = true;

    if (reads_by_lines(settings))
        changed.c_lflag |= IEXTEN, changed.c_cc[VEOF] = MARK, changed.c_cc[VLNEXT] = QUOTE;
    if (!set(slave, &changed))
        return set(slave, settings), fails(one, "its settings cannot be changed");
    for (size_t i = 0; i < one->typed.count && is_done; i++)
        is_done = type(slave, one->typed.at[i]);
    is_done = is_done && fill(slave, &one->shown);
    if (one->stopped == STOPPED_BY_BYTE) {
        changed.c_iflag |= IXON;
        changed.c_cc[VSTOP] = STOP;
        is_done = set(slave, &changed) && type(slave, STOP) && is_done;
    }
    is_done = set(slave, settings) && is_done;
    if (one->stopped == STOPPED_BY_CALL)
        is_done = !control(slave, TCXONC, (void *)TCOOFF) && is_done;
    is_done = is_done && fill(master, &one->behind);
    return is_done || fails(one, "its data does not go back");
}

/* The last one to close it reports to the master's reader that there is no slave any more. Not so where there was none:
 * the kernel keeps silent about a slave that could not be opened, as of a locked terminal. False: it is reported. */
static bool close_slave(const struct terminal *one, int master, int slave)
{
    int on = 1, off = 0, other;

    if (one->is_new) {
        control(master, TIOCSPTLCK, &on);
        if ((other = open_slave(master)) >= 0)
            close(other);
        control(master, TIOCSPTLCK, &off);
    }
    close(slave);
    return !one->is_new || !tells(master, HAS_NO_SLAVE) || fails(one, "it cannot be as if nobody had opened it");
}

bool fill_terminal(int fd)
{
    unsigned index;
    bool is_master, is_filled;
    struct terminal *one;
    struct termios settings;
    int slave, flags;

    if (!all || !identify_terminal(fd, &index, &is_master) || !is_master || !(one = find(index)))
        return true;
    flags = fcntl(fd, F_GETFL);
    if ((slave = open_slave(fd)) < 0 || tcgetattr(slave, &settings) || fcntl(fd, F_SETFL, flags | O_NONBLOCK))
        return fails(one, "its slave cannot be opened");
    is_filled = put_back(one, fd, slave, &settings);
    fcntl(fd, F_SETFL, flags);
    return close_slave(one, fd, slave) && is_filled;
}

/* The dump. */

void meet_terminal(int fd)
{
    unsigned index;
    bool is_master;
    struct terminal *one;

    if (!identify_terminal(fd, &index, &is_master) || !(one = find_or_add(index)))
        return;
    if (!is_master)
        one->has_slave = true;
    else if (one->master < 0)
        one->master = fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

static bool note_one(struct terminal *one, bool is_closed, int slave)
{
    struct termios settings;
    bool is_noted;

    if (tcgetattr(slave, &settings))
        return fails(one, "its settings cannot be read");
    is_noted = take(one, slave, &settings);
    if (is_noted && (is_closed || one->stopped || one->typed.count || one->behind.count || one->shown.count))
        is_noted = note(one);
    put_back(one, one->master, slave, &settings); /* the note has the bytes that remain; the log reports it */
    return is_noted;
}

static bool carry(struct terminal *one)
{
    bool is_closed = tells(one->master, HAS_NO_SLAVE), is_noted;
    int flags = fcntl(one->master, F_GETFL), is_packets = 0, is_locked = 0, slave, on = 1, off = 0;

    one->is_new = !is_closed && !one->has_slave;
    control(one->master, TIOCGPKT, &is_packets);
    control(one->master, TIOCGPTLCK, &is_locked);
    if (is_packets && tells(one->master, HAS_CHANGED))
        return fails(one, "a change of its state is not read (TIOCPKT)");
    if (is_locked)
        control(one->master, TIOCSPTLCK, &off);
    if ((slave = open_slave(one->master)) < 0)
        return fails(one, "its slave cannot be opened");
    if (is_packets)
        control(one->master, TIOCPKT, &off);
    fcntl(one->master, F_SETFL, flags | O_NONBLOCK);
    is_noted = note_one(one, is_closed, slave);
    fcntl(one->master, F_SETFL, flags);
    is_noted = close_slave(one, one->master, slave) && is_noted;
    if (is_packets)
        control(one->master, TIOCPKT, &on);
    if (is_locked)
        control(one->master, TIOCSPTLCK, &on);
    return is_noted;
}

bool note_terminals(int directory)
{
    bool are_noted = true;

    images = directory;
    if (all && !can_type())
        return fails(all, "the kernel does not let its input be put back (sysctl dev.tty.legacy_tiocsti=1 does)");
    for (struct terminal *one = all; one && are_noted; one = one->next)
        are_noted = one->master < 0 || carry(one);
    return are_noted;
}
