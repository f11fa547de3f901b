#pragma once
#include <metal_stdlib>
namespace simd {
using ::uint2; using ::uint3; using ::uint4;
}
