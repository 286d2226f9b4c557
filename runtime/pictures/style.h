/// The style sheet of the report's page.
#pragma once

namespace spillway::report {

/// The style sheet. Colors of categories alternate between dark and light along the stack, so that neighbors differ
/// without hue too. Every text has a contrast of 4.5 or more to its ground, in the light page and in the dark one.
inline constexpr const char* kStyle = R"css(
:root { color-scheme: light dark;
  --page: #ffffff; --card: #f6f7f9; --ink: #1c2430; --soft: #5b6676; --rule: #e3e7ec; --main: #2a62a8; --bar: #335f9a;
  --bar-odd: #4e76aa; --bar-run: #b7cbe4; --on-bar: #ffffff; --warn: #b3261e;
  --weights: #2f5d9b; --optimizer: #b3a1de; --factors: #1d7a66; --eigenbases: #a9cf63; --gradients: #b23a55;
  --activations: #f3b867; --workspace: #8a6748; --staging: #e7a9cb; --other: #9aa3ad;
  --s1: #9c6410; --s2: #2a7f60; --s3: #9a4fa8; --s4: #66707c; --s5: #b9432e;
  --forward: #2a62a8; --backward: #1d7a66; --input_gradient: #3d7a2c; --weight_gradient: #75701a;
  --statistics: #b0560b; --average: #a83279; --renew: #7a4bb5; --share: #8a5a3c; --exchange: #cbd2db;
  --update: #4a5566; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14181f; --card: #1d232c; --ink: #e8ecf1; --soft: #9aa6b5; --rule: #2e3642; --main: #7fb2f2; --bar: #5f92d0;
  --bar-odd: #86b0e4; --bar-run: #34537a; --on-bar: #0e1319; --warn: #f2918a;
  --weights: #4378bd; --optimizer: #b9a9e6; --factors: #2b8f79; --eigenbases: #aed36b; --gradients: #c44f69;
  --activations: #e9b062; --workspace: #94714f; --staging: #dda3c2; --other: #7d8792;
  --s1: #c98a2f; --s2: #4aa283; --s3: #b57cc0; --s4: #8a94a0; --s5: #d9715c;
  --forward: #7fb2f2; --backward: #5fc4ab; --input_gradient: #8fd08f; --weight_gradient: #c9cf6a;
  --statistics: #f0a55a; --average: #e58ac0; --renew: #b99cf0; --share: #c9a083; --exchange: #3b4552;
  --update: #9aa6b5; } }
* { box-sizing: border-box; }
body { margin: 0; overflow-wrap: break-word; background: var(--page); color: var(--ink); line-height: 1.45;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; font-size: 15px; }
main { max-width: 1180px; margin: 0 auto; padding: 32px 28px 56px; }
h1 { font-size: 26px; margin: 0; font-weight: 650; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 0 0 6px; font-weight: 650; }
h3 { font-size: 15px; margin: 24px 0 4px; font-weight: 650; }
h2 small, td small { color: var(--soft); font-weight: 400; font-size: 13px; }
header p, p { margin: 4px 0 0; color: var(--soft); }
section, figure { margin: 34px 0 0; }
.warn { color: var(--warn); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 14px; margin-top: 22px; }
.tiles div { background: var(--card); border-radius: 8px; padding: 12px 16px; min-width: 0; min-height: 92px; }
.tiles span { display: block; color: var(--soft); font-size: 13px; }
.tiles b { display: block; font-size: 25px; font-weight: 600; letter-spacing: -0.01em; }
.two { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(480px, 100%), 1fr)); column-gap: 36px;
  align-items: start; }
.two > * { min-width: 0; } .two svg { max-width: 640px; }
.wide { overflow-x: auto; } .wide + p { font-size: 13px; margin-top: 10px; } p + .wide { margin-top: 10px; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 8px 0 4px; padding: 0;
  font-size: 13px;
  color: var(--soft); }
.legend b { color: var(--ink); font-weight: 600; font-variant-numeric: tabular-nums; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 7px; }
svg { display: block; width: 100%; height: auto; font-size: 12px; font-variant-numeric: tabular-nums; }
.step { min-width: 736px; }
.grid { stroke: var(--rule); stroke-width: 1; }
.tick, .note { fill: var(--soft); }
.lane { fill: var(--ink); }
.end { text-anchor: end; } .middle { text-anchor: middle; }
.budget { stroke: var(--ink); stroke-width: 2; }
.budget-label { fill: var(--ink); font-weight: 650; }
.unconstrained { stroke: var(--soft); stroke-width: 1.2; stroke-dasharray: 5 4; }
.unconstrained-label { fill: var(--soft); }
.b { fill: var(--bar); shape-rendering: crispEdges; } .b.o { fill: var(--bar-odd); } .b.r { fill: var(--bar-run); }
  .b:hover { fill: var(--ink); }
.k { shape-rendering: crispEdges; } .k.r { fill-opacity: 0.5; } .k:hover { fill: var(--ink); }
.on-bar { fill: var(--on-bar); font-size: 11px; pointer-events: none; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.curve.same { stroke-width: 8; stroke-opacity: 0.4; }
path.s0 { stroke: var(--main); } path.s1 { stroke: var(--s1); } path.s2 { stroke: var(--s2); }
  path.s3 { stroke: var(--s3); }
path.s4 { stroke: var(--s4); } path.s5 { stroke: var(--s5); }
circle.s0, text.s0 { fill: var(--main); } circle.s1, text.s1 { fill: var(--s1); }
  circle.s2, text.s2 { fill: var(--s2); }
circle.s3, text.s3 { fill: var(--s3); } circle.s4, text.s4 { fill: var(--s4); }
circle.s5, text.s5 { fill: var(--s5); }
.name { font-weight: 650; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: 14px;
  font-variant-numeric: tabular-nums; }
th, td { text-align: right; vertical-align: baseline; padding: 5px 0 5px 22px; border-bottom: 1px solid var(--rule);
  white-space: nowrap; font-weight: 400; }
th, td small, .text, code { white-space: normal; }
th:first-child, .runs th, td small, .text, code { overflow-wrap: anywhere; }
td wbr { white-space: normal; }
th:first-child { text-align: left; padding-left: 0; color: var(--soft); min-width: 9em; position: sticky; left: 0;
  background: var(--page); }
tr:first-child th:not(:only-of-type) { color: var(--soft); font-size: 13px; vertical-align: bottom; }
.left, .text { text-align: left; } .text { min-width: 7em; }
.main { font-weight: 600; } tr:first-child th.main:not(:only-of-type) { color: var(--main); }
.narrow { max-width: 560px; }
.runs td small { display: block; } code { font-size: 12px; }
.pairs { margin-bottom: 16px; } .pairs th { width: 160px; } .pairs td { text-align: left; white-space: normal; }
.bar { width: 24%; min-width: 76px; } .bar i { display: block; height: 9px; border-radius: 2px;
  background: var(--bar); }
pre { background: var(--card); border-radius: 8px; padding: 14px 16px; white-space: pre-wrap; overflow-wrap: anywhere;
  font-size: 12.5px; line-height: 1.4; }
footer { margin-top: 40px; color: var(--soft); font-size: 13px; }
@media (max-width: 1000px) {
  main { padding: 24px 16px 40px; }
  th, td { padding-left: 12px; } th:first-child { min-width: 7em; }
  .step { font-size: 13.2px; } .step .on-bar { display: none; }
}
@media print {
  main { max-width: none; padding: 0; }
  section, figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
  table { font-size: 12px; } .wide { overflow-x: visible; } .step { min-width: 0; }
  .runs th, .runs td { padding-left: 6px; font-size: 10px; white-space: normal; overflow-wrap: anywhere; }
  .legend i, .bar i, .tiles div, pre { print-color-adjust: exact; }
}
)css";

}  // namespace spillway::report
