/*
 * migrate TILE...: goes to each of these tiles by the paper's call, kmigrate_to(), and prints its place, or the error.
 */
#include "tile.h"

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        int tile = (int)number_of(argv[i]), result = kmigrate_to(tile);

        if (result == 0)
            say("on tile %d\n", info(INFO_TILE));
        else
            say("tile %d: error %d\n", tile, result);
    }
    return 0;
}
