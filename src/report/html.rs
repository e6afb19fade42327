//! A document as one HTML file that needs nothing else: no script, no font, no address.

use std::fmt::Write;

use super::{
    Tone,
    document::{Block, Cell, Document, Table, Transcript, speaker},
    escape::{html, shortened},
    plot,
};

/// Most characters of a message that are shown.
const MESSAGE: usize = 1500;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1f2328;--dim:#59636e;--line:#d1d9e0;--back:#ffffff;--soft:#f6f8fa;--good:#1a7f37;--bad:#cf222e}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#9198a1;--line:#3d444d;--back:#0d1117;--soft:#151b23;--good:#3fb950;--bad:#f85149}}
*{box-sizing:border-box}body{margin:0 auto;padding:24px 20px 60px;max-width:1080px;color:var(--ink);background:var(--back);font:15px/1.5 system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}
h1{font-size:26px;margin:0}h2{font-size:19px;margin:36px 0 10px;padding-bottom:4px;border-bottom:1px solid var(--line)}h3{font-size:15px;margin:22px 0 8px}
.sub,.dim{color:var(--dim)}p{margin:8px 0}.good{color:var(--good)}.bad{color:var(--bad)}
.statement{padding:12px 16px;background:var(--soft);border-left:4px solid var(--dim);font-size:17px;white-space:pre-line}.statement.good{border-color:var(--good)}.statement.bad{border-color:var(--bad)}
table{border-collapse:collapse;margin:10px 0;font-size:13.5px;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}th,td{padding:3px 12px 3px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}th{color:var(--dim);font-weight:500}.n{text-align:right;white-space:nowrap}
code,pre{font:12.5px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}td code{overflow-wrap:break-word}pre{background:var(--soft);padding:10px 12px;margin:8px 0;white-space:pre-wrap}
.plots{display:flex;flex-wrap:wrap;gap:14px;margin:12px 0;overflow-x:auto}.plots svg{flex:none}
details{margin:8px 0;border:1px solid var(--line);border-radius:6px;padding:6px 12px}summary{cursor:pointer}
.talks{display:grid;grid-template-columns:repeat(auto-fit,minmax(320px,1fr));gap:14px}.talk{min-width:0}.talk h4{margin:6px 0;font-size:14px}
.m{border-left:3px solid var(--line);padding:2px 0 2px 10px;margin:6px 0}.m .who{color:var(--dim);font-size:12px}.m pre{margin:2px 0;padding:4px 8px}.m.bad{border-color:var(--bad);color:inherit}.m.bad .who{color:var(--bad)}
@media print{body{max-width:none;padding:0;font-size:11pt}details,.talk,table,svg,.m{break-inside:avoid}h2,h3{break-after:avoid}}";

/// The page.
pub fn page(document: &Document) -> String {
    let Document { title, subtitle, blocks } = document;
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n<title>{}</title>\n<style>\n{STYLE}\n{}\n</style>\n</head>\n<body>\n<main>\n<h1>{}</h1>\n<p class=\"sub\">{}</p>\n",
        html(title),
        plot::STYLE,
        html(title),
        html(subtitle),
    );
    blocks.iter().for_each(|found| block(&mut page, found));
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

/// A text with code between backticks, if they are in pairs.
fn prose(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    if parts.len().is_multiple_of(2) {
        return html(text);
    }
    let part = |(index, part): (usize, &&str)| match index % 2 {
        0 => html(part),
        _ => format!("<code>{}</code>", html(part)),
    };
    parts.iter().enumerate().map(part).collect()
}

fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "",
        Tone::Good => "good",
        Tone::Bad => "bad",
        Tone::Faint => "dim",
    }
}

fn block(page: &mut String, found: &Block) {
    match found {
        Block::Heading(text) => _ = writeln!(page, "<h2>{}</h2>", html(text)),
        Block::Subheading(text) => _ = writeln!(page, "<h3>{}</h3>", html(text)),
        Block::Text(text) => _ = writeln!(page, "<p>{}</p>", prose(text)),
        Block::Statement(tone, text) => {
            _ = writeln!(page, "<p class=\"statement {}\">{}</p>", class(*tone), html(text));
        }
        Block::List(items) => {
            page.push_str("<ul>\n");
            for item in items {
                _ = writeln!(page, "<li>{}</li>", prose(item));
            }
            page.push_str("</ul>\n");
        }
        Block::Table(found) => table(page, found),
        Block::Facts(facts) => {
            page.push_str("<table>\n");
            for (name, value) in facts {
                _ = writeln!(page, "<tr><th>{}</th><td>{}</td></tr>", html(name), html(value));
            }
            page.push_str("</table>\n");
        }
        Block::Code(text) => _ = writeln!(page, "<pre>{}</pre>", html(text)),
        Block::Plots(plots, caption) => {
            page.push_str("<div class=\"plots\" tabindex=\"0\">\n");
            for plot in plots {
                page.push_str(&plot.inline());
                page.push('\n');
            }
            _ = writeln!(page, "</div>\n<p class=\"dim\">{}</p>", html(caption));
        }
        Block::Details(summary, blocks) => {
            _ = writeln!(page, "<details><summary>{}</summary>", html(summary));
            blocks.iter().for_each(|found| block(page, found));
            page.push_str("</details>\n");
        }
        Block::Conversations(talks) => {
            page.push_str("<div class=\"talks\">\n");
            talks.iter().for_each(|talk| conversation(page, talk));
            page.push_str("</div>\n");
        }
    }
}

fn table(page: &mut String, Table { head, rows }: &Table) {
    let is_number = |column: usize| rows.iter().any(|row| row.get(column).is_some_and(|cell| cell.is_number));
    // It scrolls, also by keyboard.
    page.push_str("<table tabindex=\"0\">\n<tr>");
    for (column, name) in head.iter().enumerate() {
        let class = if is_number(column) { " class=\"n\"" } else { "" };
        let tag = if name.is_empty() { "td" } else { "th" };
        _ = write!(page, "<{tag}{class}>{}</{tag}>", html(name));
    }
    page.push_str("</tr>\n");
    for row in rows {
        page.push_str("<tr>");
        for Cell { text, tone, is_number, is_code } in row {
            let classes = [if *is_number { "n" } else { "" }, class(*tone)];
            let classes = classes.into_iter().filter(|class| !class.is_empty()).collect::<Vec<_>>().join(" ");
            let class = if classes.is_empty() { String::new() } else { format!(" class=\"{classes}\"") };
            let text = html(text);
            match *is_code && !text.is_empty() {
                true => _ = write!(page, "<td{class}><code>{text}</code></td>"),
                false => _ = write!(page, "<td{class}>{text}</td>"),
            }
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

fn conversation(page: &mut String, talk: &Transcript) {
    _ = writeln!(page, "<div class=\"talk\"><h4 class=\"{}\">{}</h4>", class(talk.tone), html(&talk.title));
    for message in &talk.messages {
        let failed = if message.error().is_some() { " bad" } else { "" };
        let mut who = speaker(message);
        if message.clipped_from().is_some() {
            who += ", clipped";
        }
        _ = write!(page, "<div class=\"m{failed}\"><div class=\"who\">{}</div>", html(&who));
        for text in message.reasoning.iter().chain([&message.text]).filter(|text| !text.trim().is_empty()) {
            _ = write!(page, "<pre>{}</pre>", html(&shortened(text.trim(), MESSAGE)));
        }
        for call in &message.calls {
            _ = write!(
                page,
                "<pre><b>{}</b> {}</pre>",
                html(&shortened(&call.name, 100)),
                html(&shortened(&call.arguments_json(), MESSAGE))
            );
        }
        page.push_str("</div>\n");
    }
    _ = writeln!(page, "<p class=\"dim\">{}</p></div>", html(&talk.ending));
}
