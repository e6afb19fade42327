//! The page that chats with what is served.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};

use crate::net::protect;

/// Path, type and content of each file.
const FILES: [(&str, &str, &str); 9] = [
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/style.css", "text/css; charset=utf-8", include_str!("../web/page/style.css")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/dom.js", "text/javascript; charset=utf-8", include_str!("../web/page/dom.js")),
    ("/json.js", "text/javascript; charset=utf-8", include_str!("../web/page/json.js")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page/page.js")),
    ("/answer.js", "text/javascript; charset=utf-8", include_str!("page/answer.js")),
    ("/kept.js", "text/javascript; charset=utf-8", include_str!("page/kept.js")),
    ("/icon.svg", "image/svg+xml", include_str!("../web/page/icon.svg")),
];

/// The path of a file, if it is one. It holds nothing of what is served.
pub fn path(of_request: &str) -> Option<&'static str> {
    FILES.iter().map(|(path, ..)| *path).find(|path| *path == of_request)
}

pub fn file(path: &str) -> Option<Response> {
    let (_, kind, content) = FILES.iter().find(|(name, ..)| *name == path)?;
    let mut response = ([(header::CONTENT_TYPE, *kind)], *content).into_response();
    protect(response.headers_mut());
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_fetches_nothing_from_elsewhere_and_makes_no_markup_of_text() {
        for (path, _, content) in FILES {
            let content = content.replace("http://www.w3.org/2000/svg", "");
            for wrong in ["http://", "https://", "innerHTML", "outerHTML", "insertAdjacentHTML", "eval("] {
                assert!(!content.contains(wrong), "{path} has {wrong}");
            }
        }
    }
}
