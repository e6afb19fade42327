use std::{collections::BTreeMap, time::Instant};

use super::{corpus::{Dialect, examples, write_chat}, traces::{success, traces}};
use crate::{
    mcp::{Limits, ServerSpec, Session, State, Transport, demo},
    progress::Silent,
    stage::scenarios::{Families, Live, grounded},
};

fn root() -> &'static std::path::Path {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[tokio::test(flavor = "multi_thread")]
async fn measure() {
    let families = Families::load(&root().join("pipelines/sqlite.families.toml")).unwrap();
    let server = demo::HttpServer::bind("sqlite", ([127, 0, 0, 1], 0).into()).await.unwrap();
    let url = server.url().unwrap();
    tokio::spawn(server.serve());
    let transport = Transport::Http { url, bearer_env: None, headers: BTreeMap::new() };
    let spec = ServerSpec { transport, state: State::ReadOnly, limits: Limits::default() };
    let session = Session::connect(&spec).await.unwrap();
    let (_, tools, _) = session.describe().await.unwrap();
    let live = Live::new(&spec, &tools);
    let quota = grounded::Quota { per_family: 240, per_split: 120 };
    let start = Instant::now();
    let made = grounded::generate(&families, &tools, &live, quota, 7, &Silent, &Default::default()).await.unwrap();
    println!("grounded {:?} {} calls {:?}", start.elapsed(), live.calls(), made.dropped);
    let start = Instant::now();
    let all = traces(&families, &made.train, &live, 20_000, 7, &Silent, &Default::default()).await.unwrap();
    println!("traces {:?} {} calls; success {}", start.elapsed(), live.calls(), success(&all, &made.train));
    let functions: Vec<serde_json::Value> = tools.iter().map(|tool| serde_json::from_str(&tool.function).unwrap()).collect();
    let dialect = Dialect {
        template: &std::fs::read_to_string(root().join("stages/warmup/chat_template.jinja")).unwrap(),
        system: "Use the tools to answer, then call complete_task.",
        tools: &functions,
        vocabulary: std::env::var("VOCAB").ok().and_then(|n| n.parse().ok()).unwrap_or(1024),
        phrases: std::env::var("PHRASES").ok().and_then(|n| n.parse().ok()).unwrap_or(24),
        context: 1024,
    };
    let folder = std::path::PathBuf::from(std::env::var("CHAT_OUT").unwrap());
    let start = Instant::now();
    let chat = write_chat(&folder, &all, &dialect).unwrap();
    println!("chat {:?}", start.elapsed());
    let start = Instant::now();
    let rows = examples(&all, &chat, dialect.system, &functions).unwrap();
    println!("examples {:?}", start.elapsed());
    let shared = chat.prompt(dialect.system, &functions, "x").unwrap().shared;
    let tokens: usize = rows.iter().map(|row| row.0.len() - shared.len()).sum();
    let trained: usize = rows.iter().map(|row| row.1.iter().filter(|t| **t).count()).sum();
    println!("shared {} own tokens per trace {} trained {}", shared.len(), tokens as f64 / rows.len() as f64, trained as f64 / rows.len() as f64);
    println!("{}", chat.decode(&shared));
    for row in rows.iter().take(12) {
        let pieces: Vec<String> = row.0[shared.len()..].iter().map(|t| chat.decode(&[*t])).collect();
        println!("{pieces:?}");
    }
    let dump: Vec<_> = rows.iter().map(|row| (&row.0, row.1.iter().map(|b| *b as u8).collect::<Vec<_>>())).collect();
    std::fs::write(folder.join("examples.json"), serde_json::to_string(&dump).unwrap()).unwrap();
    std::fs::write(folder.join("scenarios.json"), serde_json::to_string(&made.heldout.iter().chain(&made.train).map(|s| (&s.split, &s.family, &s.task, &s.answer, &s.reference, chat.prompt(dialect.system, &functions, &s.task).unwrap().task)).collect::<Vec<_>>()).unwrap()).unwrap();
}
