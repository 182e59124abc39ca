#include "objects.h"
const struct object sockets[] = {{0}};
