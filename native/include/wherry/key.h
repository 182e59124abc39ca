/* A secret key, as a program is given one: through a pipe, never on its command line. */
#ifndef WHERRY_KEY_H
#define WHERRY_KEY_H

#include <stdint.h>

enum { KEY_SIZE = 32 };

/* Reads a key, and nothing more, from a descriptor, and closes that. 0 or negative errno. */
int key_read(int fd, uint8_t key[KEY_SIZE]);

#endif
