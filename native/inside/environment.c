#include "environment.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

static const char SERVICE[] = "WHERRY_SERVICE", TOKEN[] = "WHERRY_TOKEN";

bool environment_is_inside(void)
{
    return getenv(SERVICE) && getenv(TOKEN);
}

bool environment_address(struct sockaddr_in *address)
{
    char text[64];
    const char *service = getenv(SERVICE);
    const char *colon = service ? strrchr(service, ':') : NULL;
    char *end;
    long port;

    if (!colon || (size_t)(colon - service) >= sizeof text)
        return false;
    memcpy(text, service, (size_t)(colon - service));
    text[colon - service] = 0;
    port = strtol(colon + 1, &end, 10);
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    return end != colon + 1 && !*end && port > 0 && port < 65536 && inet_pton(AF_INET, text, &address->sin_addr) == 1;
}

const char *environment_token(void)
{
    const char *token = getenv(TOKEN);
    size_t length = token ? strspn(token, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-_") : 0;

    return length > 0 && length < 256 && !token[length] ? token : NULL;
}
