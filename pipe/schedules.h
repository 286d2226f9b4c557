/// Schedules of pipelines: the orders in which ranks run their items.
///
/// Times below are for equal stages and messages that take no time. There are P ranks and N micro-batches. T_f and T_b
/// are seconds of a rank's forward and backward of a micro-batch. The bubble is that of each rank. Sources: Huang et
/// al., GPipe (2019); Narayanan et al., PipeDream (2019), and Megatron-LM (2021) for `interleaved`; Li and Hoefler,
/// Chimera (2021); Qi et al., Zero Bubble Pipeline Parallelism (2024). All are exact but Chimera, which adds gradients
/// of its two copies in another order.
#pragma once
#include "pipe/program.h"

namespace spillway::pipe {

/// All forwards, then all backwards. Bubble: (P − 1)(T_f + T_b). N micro-batches in flight.
StepProgram gpipe(int ranks, int micro_batches);

/// P − r − 1 forwards on rank r, then a forward and a backward alternately, then the other backwards. The same bubble,
/// and min(N, P − r) micro-batches in flight.
StepProgram one_forward_one_backward(int ranks, int micro_batches);

/// One forward, one backward over `chunks` stages a rank: stage s is on rank s mod P. Bubble: (P − 1)(T_f + T_b) /
/// chunks. Throws BadRequest where `ranks` does not divide `micro_batches`.
StepProgram interleaved(int ranks, int micro_batches, int chunks);

/// Two copies of the model in opposite directions, each for half of the micro-batches. Bubble: (P − 2)T_b at N = P.
/// Further micro-batches follow in units of P, the first forwards of a unit between the last backwards of the one
/// before. Ranks have the weights of two stages. Throws BadRequest where `ranks` is odd, or does not divide
/// `micro_batches`.
StepProgram chimera(int ranks, int micro_batches);

/// One forward, one backward with the gradients of weights apart (ZB-H1). On rank r up to r of them are outstanding,
/// and the last ones fill the end. Bubble: (P − 1)(T_f + T_i − T_w) where T_w ≤ T_f and N ≥ P, with T_i and T_w seconds
/// of the two parts. P micro-batches in flight, gradients of weights included.
StepProgram zero_bubble(int ranks, int micro_batches);

}  // namespace spillway::pipe
