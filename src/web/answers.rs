//! Answers to requests.

use std::sync::Arc;

use axum::{
    body::{Body, to_bytes},
    extract::Request,
    http::{HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::json;

use super::{
    Page, WebError, assets,
    guard::{Admission, Guard},
    query::Query,
};
use crate::{
    error::{Failure, Result},
    net::protect,
};

/// Longest body of a request, in bytes.
const BODY: usize = 1 << 20;

/// Answers one request.
pub(super) async fn answer(page: Arc<impl Page>, guard: &Guard, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let mut response = match guard.admit(&parts) {
        Admission::Foreign => plain(StatusCode::FORBIDDEN, "This page answers its own origin only.\n"),
        Admission::NoToken => plain(
            StatusCode::UNAUTHORIZED,
            "This address needs the token that mcprl printed: open the whole URL, with ?token=…\n",
        ),
        Admission::StoreToken => {
            let mut response = (StatusCode::SEE_OTHER, [(header::LOCATION, page.start())]).into_response();
            if let Ok(cookie) = HeaderValue::from_str(&guard.cookie()) {
                response.headers_mut().insert(header::SET_COOKIE, cookie);
            }
            response
        }
        Admission::Granted => granted(page, parts, body).await,
    };
    protect(response.headers_mut());
    response
}

fn plain(status: StatusCode, text: &'static str) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

async fn granted(page: Arc<impl Page>, request: axum::http::request::Parts, body: Body) -> Response {
    let path = request.uri.path();
    if request.method == Method::GET
        && let Some(asset) = assets::find(if path == "/" { page.index() } else { path })
    {
        return ([(header::CONTENT_TYPE, asset.kind)], asset.content).into_response();
    }
    let query = Query::of(&request.uri);
    let Some(name) = path.strip_prefix("/api/").map(str::to_owned) else {
        return plain(StatusCode::NOT_FOUND, "There is nothing at this address.\n");
    };
    if name == "events"
        && let Some(events) = Arc::clone(&page).events(&query)
    {
        return events.unwrap_or_else(|wrong| failed(&wrong.into()));
    }
    let body = match request.method {
        Method::GET => None,
        Method::POST => match to_bytes(body, BODY).await {
            Ok(bytes) => Some(bytes),
            Err(_) => return failed(&WebError::BadRequest("the request is too long".into()).into()),
        },
        _ => return plain(StatusCode::METHOD_NOT_ALLOWED, "GET and POST only.\n"),
    };
    let work = move || match body {
        None => page.read(&name, &query),
        Some(body) => page.change(&name, &body),
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Ok(Err(failure)) => failed(&failure),
        Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "The request failed.\n"),
    }
}

fn failed(failure: &Failure) -> Response {
    let status = match failure.code() {
        "web::not_found" => StatusCode::NOT_FOUND,
        "web::bad_request" => StatusCode::BAD_REQUEST,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    };
    (status, axum::Json(json!({ "error": failure }))).into_response()
}

pub(super) fn text(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string(value).map_err(|cause| WebError::BadRequest(cause.to_string()))?)
}
