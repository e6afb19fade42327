use std::sync::Arc;

use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};

use super::{Site, WebServer};
use crate::{
    data,
    exec::{labels, progress_file::ProgressFile},
    progress::Observer,
    store::Store,
    tasks,
    view::synthetic::{HOSTILE, RUN, Size, write},
};

/// A page that is being served.
struct Page {
    store: Store,
    _folder: tempfile::TempDir,
    origin: String,
    token: String,
    client: Client,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Page {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Page {
    async fn open(size: Size) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = write(folder.path(), size);
        let site = Arc::new(Site::new(vec![(store.clone(), " --cache C".into())], vec![RUN.into()]));
        let server = WebServer::bind(site, 0).await.unwrap();
        let url = server.url();
        let (origin, token) = url.split_once("/?token=").unwrap();
        let (origin, token) = (origin.to_owned(), token.to_owned());
        let serving = tokio::spawn(async move { server.serve().await.unwrap() });
        let client = crate::net::client().redirect(reqwest::redirect::Policy::none()).build().unwrap();
        Self { store, _folder: folder, origin, token, client, serving }
    }

    fn request(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("{}{path}", self.origin)).bearer_auth(&self.token)
    }

    async fn answer(&self, path: &str) -> Response {
        self.request(path).send().await.unwrap()
    }

    fn named(&self, name: &str, query: &[(&str, &str)]) -> RequestBuilder {
        let pairs = [("run", RUN)].into_iter().chain(query.iter().copied());
        let url = reqwest::Url::parse_with_params(&format!("{}/api/{name}", self.origin), pairs).unwrap();
        self.client.get(url).bearer_auth(&self.token)
    }

    /// The answer of the API about the run.
    async fn get(&self, name: &str, query: &[(&str, &str)]) -> Value {
        let text = self.named(name, query).send().await.unwrap().text().await.unwrap();
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{name} {query:?}: {text}"))
    }

    async fn episodes(&self, query: &[(&str, &str)]) -> Value {
        self.get("episodes", query).await
    }

    async fn matching(&self, query: &[(&str, &str)]) -> u64 {
        self.episodes(query).await["matching"].as_u64().unwrap()
    }

    async fn label(&self, episode: &Value, right: Value, note: &str) -> Response {
        let body = json!({ "run": RUN, "stage": episode["stage"], "id": episode["id"], "right": right, "note": note });
        self.post("label", &body).await
    }

    async fn post(&self, name: &str, body: &Value) -> Response {
        let request = self.client.post(format!("{}/api/{name}", self.origin)).bearer_auth(&self.token);
        request.header("origin", &self.origin).body(body.to_string()).send().await.unwrap()
    }
}

#[tokio::test]
async fn the_page_needs_its_token_which_becomes_a_cookie() {
    let page = Page::open(Size::SMALL).await;
    let bare = |path: &str| page.client.get(format!("{}{path}", page.origin)).send();
    for path in ["/", "/app.js", "/api/runs", "/api/events?run=x", "/?token=00"] {
        assert_eq!(bare(path).await.unwrap().status(), StatusCode::UNAUTHORIZED, "{path}");
    }
    let redirect = bare(&format!("/?token={}", page.token)).await.unwrap();
    assert_eq!(
        (redirect.status(), &redirect.headers()["location"]),
        (StatusCode::SEE_OTHER, &format!("/#/{RUN}/run").parse().unwrap())
    );
    let cookie = redirect.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    let with_cookie = page.client.get(format!("{}/", page.origin)).header("cookie", cookie);
    let index = with_cookie.send().await.unwrap();
    assert_eq!(index.status(), StatusCode::OK);
    let policy = index.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.contains("default-src 'none'") && policy.contains("require-trusted-types-for 'script'"));
    assert!(!policy.contains("unsafe") && index.headers()["x-content-type-options"] == "nosniff");
}

#[tokio::test]
async fn other_hosts_origins_and_methods_are_refused() {
    let page = Page::open(Size::SMALL).await;
    let cases = [
        ("host", "evil.example", StatusCode::FORBIDDEN),
        ("host", "127.0.0.1.nip.io:1", StatusCode::FORBIDDEN),
        ("host", "127.0.0.1:1", StatusCode::OK),
        ("origin", "http://evil.example", StatusCode::FORBIDDEN),
        ("origin", "null", StatusCode::FORBIDDEN),
        ("origin", page.origin.as_str(), StatusCode::OK),
    ];
    for (name, value, expected) in cases {
        let response = page.request("/api/runs").header(name, value).send().await.unwrap();
        assert_eq!(response.status(), expected, "{name}: {value}");
        assert!(response.headers().contains_key("content-security-policy"));
    }
    let url = format!("{}/api/label", page.origin);
    let post = page.client.post(&url).bearer_auth(&page.token).body("{}").send().await.unwrap();
    assert_eq!(post.status(), StatusCode::FORBIDDEN, "a change needs an origin");
    let delete = page.client.delete(&url).bearer_auth(&page.token).header("origin", &page.origin);
    assert_eq!(delete.send().await.unwrap().status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(page.answer("/etc/passwd").await.status(), StatusCode::NOT_FOUND);
    assert_eq!(page.answer("/../Cargo.toml").await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_run_is_shown_with_its_stages_and_curves() {
    let page = Page::open(Size::SMALL).await;
    let runs = page.get("runs", &[]).await;
    assert_eq!((&runs["runs"][0]["id"], &runs["chosen"][0]), (&json!(RUN), &json!(RUN)));
    let run = page.get("run", &[]).await;
    let stages = run["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 3 + 3 * 3 + 1);
    let update = stages.iter().find(|stage| stage["id"] == "train[0002]/update").unwrap();
    assert_eq!((&update["state"], &update["name"]), (&json!("ran"), &json!("train/update")));
    assert_eq!(run["spent"]["usage"][0], json!(["tokens sampled", 13_000]));
    let curves = page.get("curves", &[]).await;
    let points = curves["loops"][0]["points"].as_array().unwrap();
    assert_eq!(points.len(), 3);
    assert_eq!(points[0]["signal"]["with_gradient"], 10);
    assert_eq!(points[2]["steps"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn episodes_are_filtered_sorted_and_paged() {
    let page = Page::open(Size::SMALL).await;
    let all = page.episodes(&[("limit", "5")]).await;
    assert_eq!((&all["total"], &all["matching"]), (&json!(3 * 16 + 8), &json!(56)));
    assert_eq!(all["episodes"].as_array().unwrap().len(), 5);
    assert_eq!(all["facets"]["iterations"], json!([1, 3]));
    for (query, expected) in [
        (vec![("iteration", "2")], 16),
        (vec![("stage", "train[2]/rollout")], 16),
        (vec![("stage", "train/rollout")], 48),
        (vec![("stage", "exam")], 8),
        (vec![("policy", "trained")], 4),
        (vec![("split", "a"), ("policy", "base")], 4),
        (vec![("family", HOSTILE), ("iteration", "1")], 4),
        (vec![("scenario", "train-000001")], 12),
        (vec![("text", "select 3")], 14),
        (vec![("text", "SELECT 3"), ("iteration", "1")], 4),
        (vec![("text", "<script>")], 56),
        (vec![("text", ".*")], 0),
        (vec![("text", "tool_calls")], 0),
        (vec![("end", "no such end")], 0),
        (vec![("outcome", "labelled")], 0),
        (vec![("least", "99")], 0),
    ] {
        assert_eq!(page.matching(&query).await, expected, "{query:?}");
    }
    let (right, wrong) =
        (page.matching(&[("outcome", "right")]).await, page.matching(&[("outcome", "wrong")]).await);
    assert!(right > 0 && wrong > 0 && right + wrong == 56, "{right} {wrong}");
    let rewards = |order: &'static str| {
        let page = &page;
        async move {
            let found = page.episodes(&[("sort", "reward"), ("order", order), ("limit", "500")]).await;
            let rows = found["episodes"].as_array().unwrap().clone();
            rows.iter().map(|row| row["reward"].as_f64()).collect::<Vec<_>>()
        }
    };
    let (up, down) = (rewards("ascending").await, rewards("descending").await);
    let known = |all: &[Option<f64>]| all.iter().copied().flatten().collect::<Vec<_>>();
    assert!(known(&up).is_sorted() && known(&down).into_iter().rev().is_sorted());
    assert!(up[55].is_none() && down[55].is_none(), "episodes without a reward come last");
    let second = page.episodes(&[("offset", "5"), ("limit", "5")]).await;
    assert_ne!(second["episodes"][0]["id"], all["episodes"][0]["id"]);
    assert_eq!(page.episodes(&[("offset", "1000")]).await["episodes"], json!([]));
    for (name, value) in
        [("iteration", "x"), ("sort", "x"), ("outcome", "x"), ("least", "x"), ("limit", "-1")]
    {
        let found = page.episodes(&[(name, value)]).await;
        assert_eq!(found["error"]["code"], "web::bad_request", "{name}");
    }
    let unknown = page.get("episode", &[("stage", "exam"), ("id", "x")]).await;
    assert_eq!(unknown["error"]["code"], "web::not_found");
    let no_run = page.answer("/api/episodes?run=x").await;
    assert_eq!(no_run.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_episode_has_neighbours_among_those_that_the_filter_leaves_in_its_order() {
    let page = Page::open(Size::SMALL).await;
    let filter = [("outcome", "wrong"), ("sort", "reward"), ("order", "descending")];
    let listed = page.episodes(&[&filter[..], &[("limit", "500")]].concat()).await;
    let rows = listed["episodes"].as_array().unwrap();
    let beside = async |row: &Value, filter: &[(&str, &str)]| {
        let place = row["row"].to_string();
        let of = [
            ("of_stage", row["stage"].as_str().unwrap()),
            ("of_id", row["id"].as_str().unwrap()),
            ("of_row", place.as_str()),
        ];
        page.get("neighbours", &[filter, &of].concat()).await
    };
    for (at, row) in rows.iter().enumerate() {
        let found = beside(row, &filter).await;
        assert_eq!((&found["at"], &found["matching"]), (&json!(at + 1), &listed["matching"]));
        let after = rows.get(at + 1).map_or(Value::Null, |next| next["id"].clone());
        assert_eq!(found["after"]["id"], after);
        assert_eq!(found["before"].is_null(), at == 0);
    }
    let other = beside(&rows[0], &[("outcome", "right")]).await;
    assert_eq!((&other["at"], &other["after"]), (&Value::Null, &Value::Null), "{other}");
}

#[tokio::test]
async fn the_rollouts_that_a_bar_counts_are_those_of_its_filter() {
    let page = Page::open(Size::SMALL).await;
    let of = async |signal: &str| page.matching(&[("iteration", "1"), ("signal", signal)]).await;
    let (all, teaching) = (of("gradient,zero_variance,at_mean").await, of("gradient").await);
    assert_eq!(all, 16);
    assert!(teaching > 0 && of("zero_variance,at_mean").await == 16 - teaching);
    assert_eq!(
        page.matching(&[("stage", "exam"), ("signal", "gradient")]).await,
        0,
        "nothing learns from it"
    );
}

#[tokio::test]
async fn runs_are_listed_with_their_curve_and_tokens() {
    let page = Page::open(Size::SMALL).await;
    let run = &page.get("runs", &[]).await["runs"][0];
    assert_eq!((run["curve"].as_array().unwrap().len(), &run["tokens"]), (3, &json!(13_000)));
    let alone = page.get("sweeps", &[("runs", RUN)]).await;
    assert_eq!(alone, json!([]), "one run is no sweep");
}

#[tokio::test]
async fn an_episode_has_its_conversation_rewards_advantage_and_group() {
    let page = Page::open(Size::SMALL).await;
    let rows = page.episodes(&[("iteration", "1"), ("limit", "16")]).await;
    let rows = rows["episodes"].as_array().unwrap().clone();
    let group: Vec<&Value> = rows.iter().filter(|row| row["scenario"] == rows[0]["scenario"]).collect();
    let mean = group.iter().map(|row| row["reward"].as_f64().unwrap()).sum::<f64>() / 4.0;
    for row in &group {
        let expected = row["reward"].as_f64().unwrap() - mean;
        let found = row["advantage"].as_f64().unwrap_or(0.0);
        assert!((found - expected).abs() < 1e-6, "{row}");
    }
    let stage = rows[0]["stage"].as_str().unwrap();
    let named = [("stage", stage), ("id", rows[0]["id"].as_str().unwrap())];
    let found = page.get("episode", &named).await;
    assert_eq!(found["group"].as_array().unwrap().len(), 4);
    assert_eq!(found["trained_by"], "train[0001]/update");
    assert_eq!(found["rewards"][0]["components"][1]["name"], "rubric");
    let messages = found["messages"].as_array().unwrap();
    assert_eq!(messages[2]["calls"][0]["name"], "run_query");
    assert!(
        messages[3]["content"]["text"].as_str().unwrap().ends_with(HOSTILE),
        "texts are as they were written"
    );
    let tools = page.get("tools", &named).await;
    assert_eq!(tools.as_array().unwrap().len(), 3);

    let tokens = page.get("tokens", &named).await;
    assert_eq!((&tokens["total"], &tokens["sampled_count"]), (&json!(24), &json!(12)));
    assert_eq!(
        tokens["sampled"].as_array().unwrap().iter().filter(|sampled| **sampled == json!(true)).count(),
        12
    );
    assert_eq!((&tokens["logprobs"][0], &tokens["logprobs"][12]), (&json!(null), &json!(-0.1)));
    assert_eq!(tokens["advantage"].as_f64(), rows[0]["advantage"].as_f64().or(Some(0.0)));
    assert!(tokens["problem"].is_null() && tokens["texts"].as_array().unwrap().len() == 24, "{tokens}");
    let part = page.get("tokens", &[named[0], named[1], ("from", "20"), ("limit", "3")]).await;
    assert_eq!(part["ids"], json!([60, 61, 62]));
    assert_eq!(part["texts"][0], tokens["texts"][20]);
}

#[tokio::test]
async fn a_long_text_is_read_in_parts() {
    let page = Page::open(Size { iterations: 1, scenarios: 1, group: 1, result: 3_000_000, task: 0 }).await;
    let row = page.episodes(&[("iteration", "1")]).await["episodes"][0].clone();
    let named = [("stage", row["stage"].as_str().unwrap()), ("id", row["id"].as_str().unwrap())];
    let response = page.named("episode", &named).send().await.unwrap();
    let text = response.text().await.unwrap();
    assert!(text.len() < 60_000, "{}", text.len());
    let found: Value = serde_json::from_str(&text).unwrap();
    let content = &found["messages"][3]["content"];
    let (mut whole, bytes) =
        (content["text"].as_str().unwrap().to_owned(), content["bytes"].as_u64().unwrap());
    while (whole.len() as u64) < bytes {
        let from = whole.len().to_string();
        let part = page.get("text", &[named[0], named[1], ("message", "3"), ("from", &from)]).await;
        whole += part["text"].as_str().unwrap();
    }
    assert!(whole.ends_with(HOSTILE) && whole.len() as u64 == bytes);
    let none = page.get("text", &[named[0], named[1], ("message", "99")]).await;
    assert_eq!(none["error"]["code"], "web::not_found");
}

#[tokio::test]
async fn a_person_labels_an_episode_and_the_label_is_compared_with_the_judges() {
    let page = Page::open(Size::SMALL).await;
    let found = page.episodes(&[("iteration", "1"), ("outcome", "right")]).await;
    let right = &found["episodes"][0];
    assert_eq!(page.label(right, json!(false), HOSTILE).await.status(), StatusCode::OK);
    let stored = labels::read(&page.store, RUN).unwrap();
    assert_eq!((stored[0].right, stored[0].note.as_deref()), (Some(false), Some(HOSTILE)));
    assert!(stored[0].task.starts_with("What is number"));
    assert_eq!(data::read::<data::Label>(&labels::path(&page.store, RUN)).unwrap(), stored);
    assert_eq!(page.matching(&[("outcome", "labelled")]).await, 1);
    let judges = page.get("judges", &[]).await;
    assert_eq!(judges["labels"][0]["contradicts"], true);
    assert!(judges["disagreeing"].as_u64().unwrap() > 0);
    let pair = &judges["disagreements"][0];
    assert_ne!(pair["judges"][0], pair["judges"][1]);
    assert_eq!(judges["audits"].as_array().unwrap().len(), 3);
    // Another page has not seen this label, and changes the verdict alone.
    let body = json!({ "run": RUN, "stage": right["stage"], "id": right["id"], "right": true });
    assert_eq!(page.post("label", &body).await.status(), StatusCode::OK);
    let stored = labels::read(&page.store, RUN).unwrap();
    assert_eq!((stored[0].right, stored[0].note.as_deref()), (Some(true), Some(HOSTILE)));
    assert_eq!(page.label(right, Value::Null, " ").await.status(), StatusCode::OK);
    assert_eq!(labels::read(&page.store, RUN).unwrap(), []);
    assert_eq!(
        page.label(&json!({"stage": "x", "id": "y"}), json!(true), "").await.status(),
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn runs_with_missing_artifacts_say_so_and_show_the_rest() {
    let page = Page::open(Size::SMALL).await;
    let artifacts: Vec<_> = page.store.artifacts();
    let all = page.episodes(&[]).await;
    let trajectories = artifacts
        .iter()
        .find(|stored| page.store.artifact(&stored.digest).join("trajectories.parquet").is_file());
    std::fs::remove_dir_all(page.store.artifact(&trajectories.unwrap().digest)).unwrap();
    // As another process would do: the page reads the run again.
    let journal = page.store.runs().join(RUN).join("journal.jsonl");
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, format!("{text}{{\"torn\": ")).unwrap();
    drop(all);
    let site = Arc::new(Site::new(vec![(page.store.clone(), String::new())], vec![]));
    let episodes = site.loaded(RUN).unwrap();
    assert_eq!(episodes.unavailable.len(), 1);
    assert!(episodes.unavailable[0].problem.contains("no longer in the cache"), "{:?}", episodes.unavailable);
    assert!(episodes.tables.len() >= 2);
    let run = page.get("run", &[]).await;
    assert_eq!(run["state"], "finished");
    // Nothing but a journal.
    std::fs::remove_dir_all(page.store.root().join("cas")).unwrap();
    std::fs::remove_dir_all(page.store.root().join("ac")).unwrap();
    assert_eq!(page.get("run", &[]).await["stages"].as_array().unwrap().len(), 13);
    assert!(page.get("curves", &[]).await["loops"].is_array());
    assert!(page.get("exams", &[]).await["exams"].is_array());
    assert!(page.get("judges", &[]).await["audits"].is_array());
}

#[tokio::test]
async fn the_answer_of_a_run_is_that_of_its_exam() {
    let page = Page::open(Size::SMALL).await;
    let answer = page.get("answer", &[]).await;
    assert_eq!((&answer["exam"]["stage"], &answer["finding"]), (&json!("exam"), &json!("better")));
    assert!(answer["sentence"].as_str().unwrap().starts_with("trained beats base"), "{answer}");
    assert_eq!(answer["failed"]["tasks"], 4, "of one policy, in one mode");
    assert_eq!(answer["next"][0]["command"], format!("mcprl chat {RUN} --cache C"));
    let run = &page.get("runs", &[]).await["runs"][0];
    assert_eq!((&run["headline"]["baseline"], &run["headline"]["success"]), (&json!(0.5), &json!(0.5)));
    assert_eq!(run["training"]["stage"], "train[0003]/rollout");
}

#[tokio::test]
async fn a_stage_that_failed_shows_what_to_do_about_it() {
    let page = Page::open(Size::SMALL).await;
    let journal = page.store.runs().join(RUN).join("journal.jsonl");
    let mut text = std::fs::read_to_string(&journal).unwrap();
    let error = json!({"code": "x::y", "message": "no number", "hint": "lower it", "class": "work", "is_transient": false});
    text +=
        &json!({"at": 9_000_000, "event": "failed", "id": "train[0003]/update", "error": error}).to_string();
    std::fs::write(&journal, text + "\n").unwrap();
    let run = page.get("run", &[]).await;
    let failed =
        run["stages"].as_array().unwrap().iter().find(|stage| stage["error"] == "no number").unwrap();
    assert_eq!(failed["hint"], "lower it");
}

#[tokio::test]
async fn a_run_without_an_exam_has_no_success_and_says_how_to_continue() {
    let page = Page::open(Size::SMALL).await;
    let journal = page.store.runs().join(RUN).join("journal.jsonl");
    let text = std::fs::read_to_string(&journal).unwrap();
    let is_before = |line: &&str| !line.contains("\"exam\"") && !line.contains("\"closed\"");
    let kept: String = text.lines().filter(is_before).map(|line| format!("{line}\n")).collect();
    std::fs::write(&journal, kept).unwrap();
    let answer = page.get("answer", &[]).await;
    assert_eq!((&answer["exam"], &answer["failed"]), (&Value::Null, &Value::Null));
    assert_eq!(answer["next"][0]["command"], format!("mcprl resume {RUN} --cache C"));
    let killed = page.get("run", &[]).await;
    assert_eq!((&killed["headline"], &killed["state"]), (&Value::Null, &json!("killed")));
    assert!(killed["training"]["success"].is_number(), "{killed}");

    page.store.prepare().unwrap();
    let _live = page.store.attend(RUN).unwrap();
    let live = page.get("run", &[]).await;
    assert_eq!((&live["headline"], &live["state"]), (&Value::Null, &json!("running")));
    // It was opened long ago.
    let [live, killed] = [live, killed].map(|run| run["seconds"].as_f64().unwrap());
    assert!(live > killed + 3600.0, "{live} s of wall time");
    let answer = page.get("answer", &[]).await;
    assert!(!answer["next"].to_string().contains("resume"), "{answer}");
    assert!(
        answer["sentence"].as_str().unwrap().starts_with("not known yet"),
        "nothing is planned: {answer}"
    );
}

#[tokio::test]
async fn the_page_hears_of_changes_of_the_journal() {
    let page = Page::open(Size::SMALL).await;
    let mut events = page.request(&format!("/api/events?run={RUN}")).send().await.unwrap();
    assert_eq!(events.headers()["content-type"], "text/event-stream");
    let first = events.chunk().await.unwrap().unwrap();
    assert!(first.starts_with(b"event: changed"));
    let journal = page.store.runs().join(RUN).join("journal.jsonl");
    let mut text = std::fs::read_to_string(&journal).unwrap();
    text += "{\"at\": 1, \"event\": \"repeated\", \"pid\": 1}\n";
    std::fs::write(&journal, text).unwrap();
    let second = events.chunk().await.unwrap().unwrap();
    assert!(second.starts_with(b"event: changed") && second != first);
}

#[tokio::test]
async fn tasks_are_reviewed_on_the_page_and_the_decisions_are_tasks_of_a_file() {
    let page = Page::open(Size::SMALL).await;
    let all = page.get("tasks", &[]).await;
    let stage = all["stage"].as_str().unwrap().to_owned();
    let (total, tasks) = (all["total"].as_u64().unwrap(), all["tasks"].as_array().unwrap());
    assert!(total >= 3 && tasks.iter().all(|task| task["decision"].is_null()), "{all}");
    let ids: Vec<&str> = tasks.iter().filter_map(|task| task["id"].as_str()).collect();
    let decide = async |id: &str, decision: Option<&str>, task: Option<&str>| {
        let body = json!({ "run": RUN, "stage": stage, "id": id, "decision": decision, "task": task });
        page.post("decision", &body).await
    };
    assert_eq!(decide(ids[0], Some("drop"), None).await.status(), StatusCode::OK);
    assert_eq!(decide(ids[1], Some("edit"), Some("Is it right?")).await.status(), StatusCode::OK);
    assert_eq!(decide(ids[2], Some("accept"), None).await.status(), StatusCode::OK);
    assert_eq!(decide(ids[2], None, None).await.status(), StatusCode::OK);
    let twice = decide(ids[2], Some("edit"), Some(tasks[0]["task"].as_str().unwrap())).await;
    assert_eq!(twice.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(decide(ids[2], Some("burn"), None).await.status(), StatusCode::BAD_REQUEST);

    let edited = page.get("tasks", &[("decision", "edit")]).await;
    assert_eq!(
        (&edited["matching"], &edited["tasks"][0]["decision"]["task"]),
        (&1.into(), &"Is it right?".into())
    );
    let counts = page.get("tasks", &[]).await["counts"].clone();
    assert_eq!(counts, json!({ "drop": 1, "edit": 1, "open": total - 2 }));
    let (train, heldout) =
        tasks::file::load(std::path::Path::new(all["file"].as_str().unwrap()), (0.0, 0).into()).unwrap();
    let read: Vec<&str> = train.iter().chain(&heldout).map(|task| task.task.as_str()).collect();
    assert_eq!(read, ["Is it right?"]);
}

#[tokio::test]
async fn a_task_that_the_list_shows_in_part_is_edited_as_a_whole() {
    let page = Page::open(Size { task: 9000, ..Size::SMALL }).await;
    let all = page.get("tasks", &[]).await;
    let (stage, id) = (all["stage"].as_str().unwrap(), all["tasks"][0]["id"].as_str().unwrap());
    let listed = all["tasks"][0]["task"].as_str().unwrap();
    assert!(listed.ends_with('…') && listed.len() < 2100);
    let named = [("stage", stage), ("id", id)];
    let whole = page.get("task", &named).await;
    let text = whole["task"].as_str().unwrap();
    assert!(text.ends_with('x') && text.len() > 9000 && whole["answer"].is_string());
    let changed = format!("{text} indeed");
    let body = json!({
        "run": RUN, "stage": stage, "id": id, "decision": "edit", "task": changed, "answer": whole["answer"],
    });
    let answer: Value = page.post("decision", &body).await.json().await.unwrap();
    assert_eq!(answer["task"]["check"], "text", "the answer is a number, and its check stays one of text");
    assert_eq!(page.get("task", &named).await["task"], changed, "the next edit begins with this one");
    let (train, heldout) =
        tasks::file::load(std::path::Path::new(all["file"].as_str().unwrap()), (0.0, 0).into()).unwrap();
    let kept: Vec<_> = train.iter().chain(&heldout).map(|task| (&*task.task, &*task.check)).collect();
    assert_eq!(kept, [(&*changed, "text")]);
    let none = page.get("task", &[named[0], ("id", "x")]).await;
    assert_eq!(none["error"]["code"], "web::not_found");
}

#[tokio::test]
async fn the_page_hears_how_far_a_running_stage_is() {
    let page = Page::open(Size::SMALL).await;
    page.store.prepare().unwrap();
    let _live = page.store.attend(RUN).unwrap();
    let file = ProgressFile::new(&page.store.runs().join(RUN));
    let stage = file.begin("exam");
    stage.progress.phase("episodes", 8);
    stage.progress.advance(3);
    let mut events = page.request(&format!("/api/events?run={RUN}")).send().await.unwrap();
    let mut event = Vec::new();
    while !event.starts_with(b"event: progress") {
        event = events.chunk().await.unwrap().unwrap().to_vec();
    }
    let text = String::from_utf8(event).unwrap();
    let data: Value = serde_json::from_str(text.split_once("data: ").unwrap().1.trim()).unwrap();
    assert_eq!(
        (&data[0]["stage"], &data[0]["done"], &data[0]["units"]),
        (&"exam".into(), &3.into(), &8.into())
    );
}

/// `cargo test --release --lib web::tests::figures -- --ignored --nocapture`. With `MCPRL_MADE_RUN=FOLDER` the cache is written
/// there, for `mcprl ui --cache FOLDER`.
#[tokio::test]
#[ignore = "prints figures of a run of 100,000 episodes"]
async fn figures() {
    let size = Size { iterations: 49, scenarios: 250, group: 8, result: 1500, task: 0 };
    let page = Page::open(size).await;
    if let Some(folder) = std::env::var_os("MCPRL_MADE_RUN") {
        write(std::path::Path::new(&folder), size);
    }
    let took = async |what: &str, name: &str, query: &[(&str, &str)]| {
        let began = std::time::Instant::now();
        let found = page.get(name, query).await;
        let bytes = found.to_string().len();
        eprintln!(
            "{what:<44} {:>6.0} ms {:>8} kB {}",
            began.elapsed().as_secs_f64() * 1e3,
            bytes / 1000,
            found["matching"]
        );
    };
    took("list of runs", "runs", &[]).await;
    took("run", "run", &[]).await;
    took("curves", "curves", &[]).await;
    took("episodes, first time", "episodes", &[]).await;
    took("episodes", "episodes", &[]).await;
    took("filter by outcome and tool", "episodes", &[("outcome", "wrong"), ("tool", "run_query")]).await;
    took("sort by reward", "episodes", &[("sort", "reward")]).await;
    took("sort by family", "episodes", &[("sort", "family"), ("offset", "50000")]).await;
    took("search, first time", "episodes", &[("text", "needle77")]).await;
    took("search", "episodes", &[("text", "needle77")]).await;
    took("search for what is nowhere", "episodes", &[("text", "NOT THERE")]).await;
    took("search for what is everywhere", "episodes", &[("text", "select")]).await;
    took("judges", "judges", &[]).await;
    let row = page.episodes(&[("iteration", "25")]).await["episodes"][0].clone();
    let named = [("stage", row["stage"].as_str().unwrap()), ("id", row["id"].as_str().unwrap())];
    took("episode", "episode", &named).await;
    took("tokens", "tokens", &named).await;
}
