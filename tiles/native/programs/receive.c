/* receive: waits for messages on port 3 and prints each; a message that begins with 'q' ends it. */
#include "tile.h"

int main(void)
{
    struct mail_from from;
    char text[MAIL_SIZE + 1];
    int size;

    do {
        size = mail_receive(3, text, MAIL_SIZE, &from);
        text[size] = 0;
        say("%d from %d: %s\n", size, from.process, text);
    } while (text[0] != 'q');
    return 0;
}
