#include "objects.h"
const struct object refused[] = {{0}};
