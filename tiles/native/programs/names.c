/*
 * names serve NAME COUNT: links the name and answers so many messages with twice their number.
 * names ask NAME: waits for the name, asks for twice 21, and prints who answered.
 */
#include "tile.h"

static int serve(const char *name, long count)
{
    long number;
    struct mail_from from;

    if (name_find(name, NULL, false) != -2 || name_link(name, 6) != 0 || name_link(name, 6) != 0 ||
        name_link(name, 7) != -17 || name_unlink("another") != -2)
        return 1;
    while (count--) {
        if (mail_receive(6, &number, sizeof(number), &from) != sizeof(number))
            return 2;
        number *= 2;
        mail_send(from.process, 5, &number, sizeof(number));
    }
    return name_unlink(name) == 0 ? 0 : 3;
}

int main(int argc, char **argv)
{
    long number = 21;
    int process, port = -1;

    if (argc == 4)
        return serve(argv[2], number_of(argv[3]));
    process = name_find(argv[2], &port, true);
    if (process < 0 || name_unlink(argv[2]) != -1 || name_link(argv[2], 6) != -17)
        return 1;
    mail_send(process, port, &number, sizeof(number));
    mail_receive(5, &number, sizeof(number), NULL);
    say("%s is process %d port %d: %ld\n", argv[2], process, port, number);
    return 0;
}
