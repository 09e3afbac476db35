//! A self-contained page: the pictures, the table and the report itself. No script, no link to anywhere.

use super::{Report, plot, table};
use crate::error::BenchError;
use crate::plan::Kind;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;color:#282828;max-width:960px;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}svg{max-width:100%;height:auto}\
pre{font:12.5px/1.45 ui-monospace,monospace;background:#f6f6f6;padding:1rem;overflow-x:auto;border-radius:4px}";

/// Writes the report as a page.
///
/// # Errors
/// When a picture cannot be drawn.
pub fn html(report: &Report) -> Result<String, BenchError> {
    let pictures = match report.kind {
        Kind::Pingpong if report.is_open() => plot::by_percentile(report)?,
        Kind::Pingpong => format!("{}\n{}", plot::by_percentile(report)?, plot::by_size(report)?),
        Kind::Stream | Kind::Rate => plot::by_size(report)?,
    };
    let title = format!("doorbell {} over {}", report.kind, report.rail);
    let table = escape(&table(report, table::WIDE));
    let body = format!(
        "<h1>{}</h1>\n{pictures}\n<h2>Table</h2>\n<pre>{table}</pre>\n",
        escape(&title)
    );
    Ok(page(&title, STYLE, &body, &report.schema, &report.json()))
}

/// Returns a page that stands alone: a title, its style, what is between, and at the end the report as JSON,
/// whose kind is `schema`.
pub fn page(title: &str, style: &str, body: &str, schema: &str, json: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{}</title>\n\
         <style>{style}</style>\n</head>\n<body>\n{body}\
         <h2>Record</h2>\n<details><summary>The report as JSON ({})</summary><pre>{}</pre></details>\n</body>\n</html>\n",
        escape(title),
        escape(schema),
        escape(json)
    )
}

/// Escapes text for the inside of an element or attribute.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn the_page_stands_alone_and_escapes_what_it_shows() {
        let page = html(&samples::pingpong()).unwrap();
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("href="));
        assert!(page.contains("&lt;&amp;&gt;") && !page.contains("machine <&>"));
        assert!(page.contains("doorbell pingpong over shm") && page.ends_with("</html>\n"));
        assert_eq!(html(&samples::stream()).unwrap().matches("<svg").count(), 1);
    }
}
