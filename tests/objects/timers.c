/* Timers of every clock and mode. A periodic timer continues on its grid of intervals. */
#include "objects.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/timerfd.h>

#ifndef TFD_IOC_SET_TICKS
#define TFD_IOC_SET_TICKS _IOW('T', 0, uint64_t)
#endif

static struct timespec spec(double seconds)
{
    struct timespec made = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};

    return made;
}

static int fd;
static clockid_t clock_of;
static double period, first; /* first expiry on its clock */

static const char *timer_fd(clockid_t clock, double interval, int flags, int settime, double after)
{
    double begin = now_on(clock);
    struct itimerspec value = {spec(interval), spec(settime & TFD_TIMER_ABSTIME ? begin + after : after)};

    clock_of = clock, period = interval, first = begin + after;
    fd = timerfd_create(clock, flags | TFD_CLOEXEC);
    NEED(fd >= 0);
    NEED(!timerfd_settime(fd, settime, &value, NULL));
    return OK;
}

static int readable(int ms)
{
    struct pollfd look = {.fd = fd, .events = POLLIN};

    return poll(&look, 1, ms) == 1;
}

/* As for a process that was not scheduled: all missed expirations are counted, and the next one is on the grid. */
static const char *goes_on(void)
{
    uint64_t ticks, sum = 0;
    int wait = (int)(period * 1000) + 2000;
    double begin = now_on(CLOCK_MONOTONIC);

    for (int i = 0; i < 4 && now_on(CLOCK_MONOTONIC) < begin + 4; i++) {
        double late, told, now;

        if (!readable(wait))
            return wrong("no tick within %d ms, the %dth time", wait, i);
        NEED(read(fd, &ticks, sizeof ticks) == sizeof ticks);
        sum += ticks;
        now = now_on(clock_of);
        told = first + (double)(sum - 1) * period; /* when the last expiration was due */
        late = now - told;
        if (late < -0.003 || late > period + 0.5)
            return wrong("tick %lu is %.3f s late, period %.3f s", (unsigned long)sum, late, period);
    }
    return OK;
}

#define PERIODIC(name, clock, interval, flags, settime) \
    static const char *make_##name(void) { return timer_fd(clock, interval, flags, settime, interval); }
PERIODIC(mono20, CLOCK_MONOTONIC, 0.020, TFD_NONBLOCK, 0)
PERIODIC(mono20b, CLOCK_MONOTONIC, 0.020, 0, 0)
PERIODIC(mono100, CLOCK_MONOTONIC, 0.100, TFD_NONBLOCK, 0)
PERIODIC(mono1000, CLOCK_MONOTONIC, 1.0, 0, 0)
PERIODIC(mono1, CLOCK_MONOTONIC, 0.001, 0, 0)
PERIODIC(real20, CLOCK_REALTIME, 0.020, TFD_NONBLOCK, 0)
PERIODIC(real100, CLOCK_REALTIME, 0.100, 0, TFD_TIMER_ABSTIME)
PERIODIC(real1000, CLOCK_REALTIME, 1.0, 0, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET)
PERIODIC(boot20, CLOCK_BOOTTIME, 0.020, 0, 0)
PERIODIC(boot100, CLOCK_BOOTTIME, 0.100, TFD_NONBLOCK, TFD_TIMER_ABSTIME)
PERIODIC(mono4300abs, CLOCK_MONOTONIC, 4.3, 0, TFD_TIMER_ABSTIME)

static const char *once(double after, int settime, clockid_t clock) { return timer_fd(clock, 0, 0, settime, after); }
static const char *make_once_mono(void) { return once(5.0, 0, CLOCK_MONOTONIC); }
static const char *make_once_abs(void) { return once(5.0, TFD_TIMER_ABSTIME, CLOCK_MONOTONIC); }
static const char *make_once_real_abs(void) { return once(5.0, TFD_TIMER_ABSTIME, CLOCK_REALTIME); }
static const char *make_once_cancel(void)
{
    return once(5.0, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, CLOCK_REALTIME);
}
static const char *check_once(void)
{
    uint64_t ticks;
    double begin = now_on(clock_of), late;

    if (!readable(15000))
        return "it never expired";
    late = now_on(clock_of) - (first < begin ? begin : first);
    if (late < -0.003 || late > 3)
        return wrong("it expired %.3f s late", late);
    NEED(read(fd, &ticks, sizeof ticks) == sizeof ticks && ticks == 1);
    return readable(300) ? "it expired twice" : OK;
}

static const char *make_expired(void)
{
    const char *text = once(0.01, 0, CLOCK_MONOTONIC);

    sleep_ms(50);
    return text;
}
static const char *check_expired(void)
{
    uint64_t ticks = 0;

    NEED(readable(0));
    NEED(read(fd, &ticks, sizeof ticks) == sizeof ticks && ticks == 1);
    return readable(300) ? "it expired twice" : OK;
}

static const char *make_disarmed(void)
{
    struct itimerspec none = {0};
    const char *text = timer_fd(CLOCK_MONOTONIC, 0.02, TFD_NONBLOCK, 0, 0.02);

    sleep_ms(50);
    NEED(!timerfd_settime(fd, 0, &none, NULL));
    return text;
}
static const char *check_disarmed(void) { return readable(300) ? "it expired" : OK; }

static const char *make_read(void)
{
    uint64_t ticks;
    const char *text = timer_fd(CLOCK_MONOTONIC, 0, TFD_NONBLOCK, 0, 0.01);

    NEED(readable(1000) && read(fd, &ticks, sizeof ticks) == sizeof ticks);
    return text;
}

/* Somebody sets the clock, and nobody has read that yet. */
static const char *make_cancelled(void) { return make_once_cancel(); }
static const char *make_cancelled_periodic(void)
{
    return timer_fd(CLOCK_REALTIME, 5, 0, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, 5);
}
static const char *check_cancelled(void)
{
    uint64_t ticks;

    NEED(readable(0));
    return read(fd, &ticks, sizeof ticks) < 0 && errno == ECANCELED ? OK : "read(2) does not report that the clock was set";
}

/* Interval timers and POSIX timers. */
static volatile sig_atomic_t seen, value;
static timer_t timer;

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    seen = seen + 1;
    if (info->si_code == SI_TIMER)
        value = info->si_value.sival_int;
}

static int catch(int number)
{
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};

    return sigaction(number, &action, NULL);
}

static void burn(double seconds)
{
    double end = now_on(CLOCK_MONOTONIC) + seconds;

    while (now_on(CLOCK_MONOTONIC) < end)
        ;
}

static const char *interval(int which, int number, int period_us)
{
    struct itimerval set = {{0, period_us}, {0, period_us}};

    NEED(!catch(number));
    NEED(!setitimer(which, &set, NULL));
    return OK;
}
static const char *make_itimer_real(void) { return interval(ITIMER_REAL, SIGALRM, 20000); }
static const char *make_itimer_virtual(void) { return interval(ITIMER_VIRTUAL, SIGVTALRM, 20000); }
static const char *make_itimer_prof(void) { return interval(ITIMER_PROF, SIGPROF, 20000); }
static const char *check_signals(void)
{
    int before = seen;

    burn(0.5);
    for (int i = 0; seen - before < 5 && i < 100; i++)
        burn(0.05); /* more time on a busy machine */
    return seen - before < 5 ? wrong("%d signals", seen - before) : OK;
}

static sigset_t blocked_alarm;
static const char *make_itimer_pending(void)
{
    sigemptyset(&blocked_alarm);
    sigaddset(&blocked_alarm, SIGALRM);
    sigprocmask(SIG_BLOCK, &blocked_alarm, NULL);
    return interval(ITIMER_REAL, SIGALRM, 20000);
}
static const char *check_itimer_pending(void)
{
    sigprocmask(SIG_UNBLOCK, &blocked_alarm, NULL);
    return check_signals();
}

static double alarm_due;
/* The remaining time is the same after the restore as at the dump, so the timer is late by the freeze. */
static const char *make_alarm(void)
{
    NEED(!catch(SIGALRM));
    alarm(5);
    alarm_due = now_on(CLOCK_MONOTONIC) + 5;
    return OK;
}
static const char *check_alarm(void)
{
    double begin = now_on(CLOCK_MONOTONIC), late;

    for (int i = 0; !seen && i < 1500; i++)
        usleep(10000);
    late = now_on(CLOCK_MONOTONIC) - (alarm_due < begin ? begin : alarm_due);
    if (!seen)
        return "it never came";
    return late < -0.05 || late > 10 ? wrong("it came %.3f s late", late) : OK;
}

static const char *posix(clockid_t clock, int notify, double period_s)
{
    struct sigevent event = {.sigev_notify = notify, .sigev_signo = SIGRTMIN + 1, .sigev_value.sival_int = 77};
    struct itimerspec set = {spec(period_s), spec(period_s)};

    if (notify == SIGEV_THREAD_ID)
        event._sigev_un._tid = gettid();
    NEED(!catch(SIGRTMIN + 1));
    NEED(!timer_create(clock, &event, &timer));
    NEED(!timer_settime(timer, 0, &set, NULL));
    return OK;
}
static const char *make_posix_mono(void) { return posix(CLOCK_MONOTONIC, SIGEV_SIGNAL, 0.02); }
static const char *make_posix_real(void) { return posix(CLOCK_REALTIME, SIGEV_SIGNAL, 0.02); }
static const char *make_posix_boot(void) { return posix(CLOCK_BOOTTIME, SIGEV_SIGNAL, 0.02); }
static const char *make_posix_thread(void) { return posix(CLOCK_MONOTONIC, SIGEV_THREAD_ID, 0.02); }
static const char *make_posix_cpu(void) { return posix(CLOCK_PROCESS_CPUTIME_ID, SIGEV_SIGNAL, 0.02); }
static const char *make_posix_thread_cpu(void) { return posix(CLOCK_THREAD_CPUTIME_ID, SIGEV_SIGNAL, 0.02); }
static const char *make_posix_none(void) { return posix(CLOCK_MONOTONIC, SIGEV_NONE, 5.0); }
static const char *check_posix(void)
{
    const char *text = check_signals();

    return !*text && value != 77 ? wrong("value %d", value) : text;
}
static const char *check_posix_none(void)
{
    struct itimerspec left;

    NEED(!timer_gettime(timer, &left));
    return left.it_value.tv_sec > 5 || (!left.it_value.tv_sec && !left.it_value.tv_nsec) ? "it does not run" : OK;
}

static const char *make_posix_pending(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    NEED(!*posix(CLOCK_MONOTONIC, SIGEV_SIGNAL, 0.01));
    sleep_ms(300);
    return OK;
}
static const char *check_posix_pending(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 1);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    if (!seen)
        return "the pending signal is gone";
    return check_posix();
}

/* A program whose clock stops during a move measures less time than its peers. */
static const clockid_t steady[] = {CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_BOOTTIME};
static double ahead[3];

static double ahead_of_real(clockid_t clock)
{
    double before = now_on(clock), real = now_on(CLOCK_REALTIME);

    return real - (before + now_on(clock)) / 2;
}
static const char *make_clocks(void)
{
    for (int i = 0; i < 3; i++)
        ahead[i] = ahead_of_real(steady[i]);
    return OK;
}
static const char *check_clocks(void)
{
    for (int i = 0; i < 3; i++) {
        double lost = ahead_of_real(steady[i]) - ahead[i];

        if (lost < -0.02 || lost > 0.02)
            return wrong("clock %d did not run for %.3f s", steady[i], lost);
    }
    return OK;
}

#define CASE(name, check) {#name, make_##name, check}
const struct object timers[] = {
    CASE(mono20, goes_on), CASE(mono20b, goes_on), CASE(mono100, goes_on), CASE(mono1000, goes_on),
    CASE(mono1, goes_on), CASE(real20, goes_on), CASE(real100, goes_on), CASE(real1000, goes_on),
    CASE(boot20, goes_on), CASE(boot100, goes_on), CASE(mono4300abs, goes_on),
    CASE(once_mono, check_once), CASE(once_abs, check_once), CASE(once_real_abs, check_once),
    CASE(once_cancel, check_once), CASE(expired, check_expired), CASE(disarmed, check_disarmed),
    CASE(read, check_disarmed), CASE(cancelled, check_cancelled), CASE(cancelled_periodic, check_cancelled),
    CASE(itimer_real, check_signals), CASE(itimer_virtual, check_signals), CASE(itimer_prof, check_signals),
    CASE(itimer_pending, check_itimer_pending), CASE(alarm, check_alarm),
    CASE(posix_mono, check_posix), CASE(posix_real, check_posix), CASE(posix_boot, check_posix),
    CASE(posix_thread, check_posix), CASE(posix_cpu, check_posix), CASE(posix_thread_cpu, check_posix),
    CASE(clocks, check_clocks), CASE(posix_none, check_posix_none), CASE(posix_pending, check_posix_pending), {0},
};
