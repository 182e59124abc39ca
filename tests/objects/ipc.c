#include "objects.h"
const struct object ipc[] = {{0}};
