#pragma once
#include "torch_stand_in.h"
