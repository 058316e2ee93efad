// SPDX-License-Identifier: Apache-2.0
// The functors that a device runs, of each type: the one list from which launchers are
// instantiated.
#pragma once

#include "kernels/delta_functors.hpp"
#include "kernels/delta_gradient_functors.hpp"
#include "kernels/flat_functors.hpp"
#include "kernels/norm_functors.hpp"
#include "kernels/route_functors.hpp"
#include "kernels/row_functors.hpp"

#define ZEA_FOR_ROW_FUNCTORS_OF(visit, T)                                                         \
  visit(RouteRow<T>) visit(RouteRowBackward<T>) visit(AddActiveRows<T>) visit(NormalizeRow<T>)    \
      visit(NormalizeRowBackward<T>) visit(SumNormGradients<T>) visit(NormalizeHead<T>)           \
          visit(NormalizeHeadBackward<T>) visit(SumHeadNormGradients<T>) visit(MergeHead<T>)      \
              visit(RotateHeads<T>) visit(RotateHeads<T, true>) visit(DropRow<T>) visit(          \
                  GatedRow<SiluGate, T>) visit(GatedRow<ErfGate, T>) visit(GatedRow<TanhGate, T>) \
                  visit(GatedRowBackward<SiluGate, T>) visit(GatedRowBackward<ErfGate, T>)        \
                      visit(GatedRowBackward<TanhGate, T>) visit(GeluRun<ErfGate, T>)             \
                          visit(GeluRunBackward<ErfGate, T>) visit(GeluRun<TanhGate, T>)          \
                              visit(GeluRunBackward<TanhGate, T>) visit(GeluRun<QuickGate, T>)    \
                                  visit(GeluRunBackward<QuickGate, T>) visit(SendRow<T>)          \
                                      visit(CombineRows<T>) visit(CombineRowBackward<T>)          \
                                          visit(MixDeltaToken<T>) visit(MixDeltaTokenBackward<T>) \
                                              visit(ConvolveBackward<T>) visit(GatedNormHead<T>)  \
                                                  visit(GatedNormBackward<T>)                     \
                                                      visit(StoreOutputs<T>) visit(ScaleRow<T>)   \
                                                          visit(RowDot<T>)                        \
                                                              visit(ClampedGateRow<T>)            \
                                                                  visit(ClampedGateRowBackward<T>)
#define ZEA_FOR_CHUNK_FUNCTORS_OF(visit, W) \
  visit(MakeChunk<W>) visit(MakeChunkBackward<W>) visit(StoreChunkGradients<W>)
#define ZEA_FOR_ROW_FUNCTORS(visit)                                    \
  ZEA_FOR_ROW_FUNCTORS_OF(visit, double)                               \
  ZEA_FOR_ROW_FUNCTORS_OF(visit, float)                                \
  ZEA_FOR_ROW_FUNCTORS_OF(visit, Bf16)                                 \
  visit(PlaceCopies<int64_t>) ZEA_FOR_CHUNK_FUNCTORS_OF(visit, double) \
      ZEA_FOR_CHUNK_FUNCTORS_OF(visit, float)

#define ZEA_FOR_LOGIT_FUNCTORS(visit)                                           \
  visit(AddLogitRow<double>) visit(AddLogitRow<float>) visit(AddLogitRow<Bf16>) \
      visit(LogitRowGradient<double>) visit(LogitRowGradient<float>) visit(LogitRowGradient<Bf16>)

#define ZEA_FOR_FLAT_FUNCTORS(visit)                                                             \
  visit(ChunksOfFlats<AdamwChunk<double>>) visit(ChunksOfFlats<AdamwChunk<float>>)               \
      visit(ChunksOfFlats<SgdChunk<double>>) visit(ChunksOfFlats<SgdChunk<float>>)               \
          visit(ChunksOfFlats<NesterovChunk<double>>) visit(ChunksOfFlats<NesterovChunk<float>>) \
              visit(ChunksOfFlats<SquaresOfChunk<double>>)                                       \
                  visit(ChunksOfFlats<SquaresOfChunk<float>>) visit(BlockwiseAdamwBlock<double>) \
                      visit(BlockwiseAdamwBlock<float>)

// Variadic: a functor of two types has a comma.
#define ZEA_INSTANTIATE_LAUNCH(...) \
  template void launch_items<__VA_ARGS__>(const __VA_ARGS__&, int64_t, int64_t, void*);
