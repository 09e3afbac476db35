//! A report as one page that stands alone: how it looks.

pub(crate) use doorbell_bench::report::escape;

const STYLE: &str = "\
:root{--ink:#22272e;--soft:#667080;--line:#e3e6ea;--ahead:#d9efe3;--behind:#fbe0cf;--open:#f1f2f4}\
body{font:15px/1.55 system-ui,sans-serif;color:var(--ink);max-width:1040px;margin:2.2rem auto;padding:0 1.2rem}\
h1{font-size:1.7rem;margin:0 0 .2rem}h2{font-size:1.2rem;margin:2.6rem 0 .6rem;padding-top:1.2rem;border-top:1px solid var(--line)}\
h3{font-size:1rem;margin:1.6rem 0 .4rem}p,li{max-width:75ch}.soft{color:var(--soft)}\
svg{width:100%;height:auto;display:block;margin:.6rem 0}\
table{border-collapse:collapse;font-size:13.5px;font-variant-numeric:tabular-nums;margin:.4rem 0 1rem}\
th,td{padding:.32rem .7rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th{font-weight:600;color:var(--soft)}td:first-child,th:first-child{text-align:left}\
td small{display:block;color:var(--soft)}tr.ours td:first-child{font-weight:600}td.leads{font-weight:700}\
td.ahead{background:var(--ahead)}td.behind{background:var(--behind)}td.open{background:var(--open)}\
.dot{display:inline-block;width:.7em;height:.7em;border-radius:50%;margin-right:.5em}.dot.square{border-radius:0}\
.cards{display:flex;flex-wrap:wrap;gap:.8rem;margin:1.2rem 0}.card{border-radius:8px;padding:.7rem 1.1rem;min-width:9rem}\
.card b{display:block;font-size:1.7rem;line-height:1.2}\
pre{font:12px/1.45 ui-monospace,monospace;background:#f6f7f8;padding:1rem;overflow-x:auto;border-radius:6px}\
.wide{overflow-x:auto}";

/// The page of a title, what is between, and the report as JSON, whose kind is `schema`.
pub(crate) fn page(title: &str, body: &str, schema: &str, json: &str) -> String {
    doorbell_bench::report::page(title, STYLE, body, schema, json)
}
