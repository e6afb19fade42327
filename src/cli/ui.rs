//! `mcprl ui`: serves the live page of runs.

use std::sync::Arc;

use clap::Args;

use super::{
    Outcome, interrupted,
    locations::{Locations, cache_option},
    runtime,
    target::Target,
};
use crate::{
    error::Result,
    exec::history,
    store::Store,
    ui::{OutputFormat, Printer},
    web::{Page, Site, WebServer},
};

#[derive(Args)]
pub struct Ui {
    /// The runs to open, as `mcprl runs` lists them or as paths; several are shown together [default: latest].
    #[arg(value_name = "RUN")]
    runs: Vec<String>,
    /// The port on 127.0.0.1 [default: any free one].
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    port: u16,
    #[command(flatten)]
    locations: Locations,
}

impl Ui {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let (mut stores, mut chosen): (Vec<(Store, String)>, Vec<String>) = (Vec::new(), Vec::new());
        let latest = vec!["latest".to_owned()];
        for run in if self.runs.is_empty() { &latest } else { &self.runs } {
            let Target { store, run, .. } = Target::new(&self.locations, run)?;
            let id = history::run(&store, &run)?.id;
            if !stores.iter().any(|(known, _)| known.root() == store.root()) {
                let option = cache_option(&store);
                stores.push((store, option));
            }
            chosen.push(id);
        }
        serve(printer, Arc::new(Site::new(stores, chosen)), self.port)
    }
}

/// Serves a page until Ctrl-C.
///
/// # Errors
/// If the port is in use, or the server fails.
pub fn serve(printer: Printer, page: Arc<impl Page>, port: u16) -> Result<Outcome> {
    runtime()?.block_on(async {
        let server = WebServer::bind(page, port).await?;
        show(printer, &server.url());
        tokio::select! {
            served = server.serve() => served?,
            () = interrupted() => {}
        }
        Ok(Outcome::Success)
    })
}

/// Serves the page of a run that this process executes, until the process ends.
///
/// # Errors
/// If no port can be bound.
pub fn serve_run(printer: Printer, store: &Store, run: &str) -> Result<()> {
    let site = Arc::new(Site::new(vec![(store.clone(), cache_option(store))], vec![run.to_owned()]));
    // One thread: the page must not slow down the run.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().max_blocking_threads(1).build().map_err(super::NoRuntime)?;
    let server = runtime.block_on(WebServer::bind(site, 0))?;
    show(printer, &server.url());
    std::thread::spawn(move || runtime.block_on(server.serve()));
    Ok(())
}

/// Prints where the page is.
pub fn show(printer: Printer, url: &str) {
    match printer.format {
        OutputFormat::Json => printer.data(&serde_json::json!({ "event": "ui", "url": url }).to_string()),
        OutputFormat::Human => printer.say(&format!("ui       {url}")),
    }
}
