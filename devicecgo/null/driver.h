#ifndef MESHRUN_NULL_DRIVER_H
#define MESHRUN_NULL_DRIVER_H

#include "meshrun_driver.h"

const mr_driver* meshrun_null_driver(uint32_t version);
const mr_driver* meshrun_null_unpinned_driver(uint32_t version); /* declares that any thread will do */

#endif
