#include <edgedec.h>
