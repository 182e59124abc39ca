/* count STEPS PAUSE: prints the numbers 1 to STEPS, with PAUSE rounds of arithmetic between; ends with the checksum. */
#include "tile.h"

int main(int argc, char **argv)
{
    long steps = argc > 1 ? number_of(argv[1]) : 10, pause = argc > 2 ? number_of(argv[2]) : 0;
    uint64_t sum = 1;

    for (long step = 1; step <= steps; step++) {
        for (long i = 0; i < pause; i++)
            sum = sum * 6364136223846793005u + 1442695040888963407u;
        say("%ld\n", step);
    }
    say("sum %lx\n", sum);
    return 0;
}
