/*
 * The daemon's data in a rank's environment: WHERRY_SERVICE (its address and port) and WHERRY_TOKEN. The program may
 * have changed both.
 */
#ifndef WHERRY_INSIDE_ENVIRONMENT_H
#define WHERRY_INSIDE_ENVIRONMENT_H

#include <netinet/in.h>
#include <stdbool.h>

/* Whether it has both. */
bool environment_is_inside(void);

/* The daemon's address. False when it is none. */
bool environment_address(struct sockaddr_in *address);

/* The token; NULL when it may not be part of a request. */
const char *environment_token(void);

#endif
