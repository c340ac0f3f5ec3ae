#pragma once
#define TORCH_VERSION "0.0.0"
