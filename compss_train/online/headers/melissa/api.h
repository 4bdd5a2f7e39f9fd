/* <melissa/api.h>, as some solvers name it. */
#include "../melissa_api.h"
