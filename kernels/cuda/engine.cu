// All kernels of the engine. NVRTC compiles this file for GPUs; a C++ compiler, with -DED_EMULATE, for the emulation.
#include "attention.h"
#include "head.h"
#include "matrix.h"
#include "moe.h"
#include "prepare.h"
#include "product.h"
#include "ssm.h"
