/* send PROCESS PORT WORD...: sends each word as a message. The exit code is the errno of a send that fails. */
#include "tile.h"

int main(int argc, char **argv)
{
    for (int i = 3; i < argc; i++) {
        int result = mail_send((int)number_of(argv[1]), (int)number_of(argv[2]), argv[i], strlen(argv[i]));

        if (result < 0)
            return -result;
    }
    return 0;
}
