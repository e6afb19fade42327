//! The page's own files, embedded in the binary.

/// A file: its path, its type and its content.
pub(super) struct Asset {
    pub path: &'static str,
    pub kind: &'static str,
    pub content: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

macro_rules! assets {
    ($($name:literal: $kind:ident),+ $(,)?) => {
        &[$(Asset { path: concat!("/", $name), kind: $kind, content: include_str!(concat!("page/", $name)) }),+]
    };
}

pub(super) const ASSETS: &[Asset] = assets![
    "index.html": HTML,
    "style.css": STYLE,
    "icon.svg": IMAGE,
    "app.js": SCRIPT,
    "dom.js": SCRIPT,
    "api.js": SCRIPT,
    "charts.js": SCRIPT,
    "answer.js": SCRIPT,
    "timeline.js": SCRIPT,
    "graph.js": SCRIPT,
    "run.js": SCRIPT,
    "runs.js": SCRIPT,
    "episodes.js": SCRIPT,
    "conversation.js": SCRIPT,
    "transcript.js": SCRIPT,
    "tokens.js": SCRIPT,
    "exam.js": SCRIPT,
    "json.js": SCRIPT,
    "judges.js": SCRIPT,
    "tasks.js": SCRIPT,
    "traces.html": HTML,
    "traces.js": SCRIPT,
];

/// The file at this path.
pub(super) fn find(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_makes_the_same_characters_visible_as_reports() {
        let range =
            |(first, last): &(char, char)| format!("\\u{{{:x}}}-\\u{{{:x}}}", *first as u32, *last as u32);
        let ranges: String = crate::text::HIDDEN.iter().map(range).collect();
        let line = format!("const HIDDEN = /[{ranges}\\u{{d800}}-\\u{{dfff}}]/gu;");
        assert!(find("/dom.js").unwrap().content.contains(&line), "{line}");
    }

    #[test]
    fn the_page_is_small_and_fetches_nothing_from_elsewhere() {
        let bytes: usize = ASSETS.iter().map(|asset| asset.content.len()).sum();
        assert!(bytes < 300_000, "{bytes} bytes");
        for Asset { path, content, .. } in ASSETS {
            let content = content.replace("http://www.w3.org/2000/svg", "");
            for wrong in [
                "http://",
                "https://",
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
            ] {
                assert!(!content.contains(wrong), "{path} has {wrong}");
            }
        }
    }

    #[test]
    fn every_module_that_is_imported_is_served() {
        for Asset { path, content, .. } in ASSETS {
            let imports = content.split("from \"./").skip(1).chain(content.split("import(\"./").skip(1));
            for rest in imports {
                let name = rest.split('"').next().unwrap();
                assert!(find(&format!("/{name}")).is_some(), "{path} imports {name}");
            }
        }
    }
}
