#include "objects.h"
const struct object processes[] = {{0}};
