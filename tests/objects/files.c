#include "objects.h"
const struct object files[] = {{0}};
