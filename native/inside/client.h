/*
 * Requests of a rank to the daemon. Each has a connection of its own, so that a move, or another daemon, cuts off at most
 * one answer; that request is repeated, which all requests allow (an act has a key, by which the daemon recognises it).
 */
#ifndef WHERRY_INSIDE_CLIENT_H
#define WHERRY_INSIDE_CLIENT_H

#include "answer.h"

struct request {
    const char *method;
    const char *path;
    const char *body;   /* JSON; NULL: none */
    const char *key;    /* NULL: a request that changes nothing */
    int wait;           /* seconds for which the daemon may keep the answer back */
};

/* 0 with an answer, which points into *memory (the caller frees it); else WHERRY_E_…, with the error's text set. */
int client_ask(const struct request *request, struct answer *answer, char **memory);

/* A new key for client_ask(): 32 hex digits and their end. WHERRY_E_SYSTEM without random bytes. */
int client_new_key(char *key);

/* Sets the text of wherry_error(). */
void client_say(const char *what, const char *why);

/* It, until the next one. */
const char *client_said(void);

#endif
