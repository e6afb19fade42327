//! `discover`: writes the server's identity and what it offers to Parquet.
//!
//! Calls no tools. It only reads, cleans and filters the lists.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::{
    Context, Metrics, StageKind,
    kind::{Requirement, StageFuture},
    metrics,
    preflight::{ExpectedOutput, Preflight, PreflightContext},
};
use crate::{
    agent::Toolbox,
    data::Tool,
    error::{self, At, Diagnostic, Interrupted, did_you_mean},
    mcp::{Sandbox, ServerSpec, Servers, Session, State, tools_digest},
    offered::{self, Offered, tool_rows},
};

#[derive(Deserialize)]
pub struct Discover {
    /// Leave out tools that the server does not declare read-only.
    read_only: bool,
    /// Keep tools that declare themselves destructive, although what they do outlives an episode.
    destructive: bool,
    /// Names of the tools to keep; empty keeps all.
    allow: Vec<String>,
    /// Names of tools to leave out.
    deny: Vec<String>,
    /// Texts of tools that replace the server's.
    overrides: Option<BTreeMap<String, ToolTexts>>,
}

/// Texts of a tool for the agent.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolTexts {
    description: Option<String>,
    /// Descriptions of parameters.
    #[serde(default)]
    parameters: BTreeMap<String, String>,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "discover", class = usage)]
pub enum DiscoverError {
    #[error("no [server] to discover")]
    #[hint = "add a [server] table with a `command` or a `url`"]
    NoServer,
    #[error("`{list}` names `{name}`, which is not a tool of the server")]
    #[hint("did you mean `{meant}`?" if let Some(meant) = meant)]
    UnknownTool { list: &'static str, name: String, meant: Option<String> },
    #[error("`overrides` names `{parameter}`, which is not a parameter of the tool `{tool}`")]
    #[hint("did you mean `{meant}`?" if let Some(meant) = meant)]
    UnknownParameter { tool: String, parameter: String, meant: Option<String> },
    #[error("`{name}` is in both `allow` and `deny`")]
    #[diagnostic(code = "allowed_and_denied")]
    #[hint = "remove it from one of them"]
    Both { name: String },
    #[error("`reset_tool` names `{name}`, which is not a tool of the server")]
    #[hint("did you mean `{meant}`?" if let Some(meant) = meant)]
    NoResetTool { name: String, meant: Option<String> },
    #[error("no tool is left: the server lists {listed}")]
    #[diagnostic(class = work if *listed == 0)]
    #[hint("there is nothing to learn on a server without tools" if *listed == 0)]
    #[hint = "loosen `read_only`, `allow` or `deny`"]
    NoTools { listed: usize },
}

/// Names of tools by the reason why they are left out.
type LeftOut = BTreeMap<&'static str, Vec<String>>;

impl Discover {
    async fn list(&self, context: &Context) -> error::Result<Metrics> {
        let servers = context.servers.as_ref().ok_or(DiscoverError::NoServer)?;
        let visit = async |spec: &ServerSpec| {
            let session = Session::connect(spec).await?;
            let described = session.describe().await;
            let notes = session.take_notes();
            session.close().await;
            described.map(|description| (description, notes))
        };
        let visits = servers.iter().map(async |(name, spec)| {
            visit(spec).await.map(|described| (name.to_owned(), described)).at(|| of_server(name))
        });
        let visited = tokio::select! {
            visited = futures::future::try_join_all(visits) => visited?,
            () = context.cancel.cancelled() => return Err(Interrupted.into()),
        };
        let mut described = Vec::new();
        for (name, (one, notes)) in visited {
            let prefix = if name.is_empty() { String::new() } else { format!("{}: ", of_server(&name)) };
            notes.iter().for_each(|note| context.observer.note(&format!("{prefix}{note}")));
            for unknown in unknown_limits(servers, &name, &tool_rows(one.tools.clone())) {
                context.observer.note(&format!("{prefix}{unknown}"));
            }
            described.push((name, one));
        }
        let (offered, unsafe_tools) = self.written(Offered::of(described), servers)?;
        let Offered { servers: rows, tools, resources, resource_templates, prompts } = offered;
        for (why, names) in unsafe_tools {
            context.observer.note(&format!("left out {}, which {why}", names.join(", ")));
        }
        let silent = self.silent(&tools, servers);
        if !silent.is_empty() {
            context.observer.note(&format!(
                "state = \"read-only\", but the server does not say whether {} change something: `deny` what does, and \
                 name what does not in `allow`",
                silent.join(", ")
            ));
        }
        Toolbox::new(&tools)?.notes().for_each(|note| context.observer.note(&note));
        let count = tools.iter().filter(|tool| !tool.synthetic).count();
        context.write("server", &rows)?;
        context.write("tools", &tools)?;
        context.write("resources", &resources)?;
        context.write("resource_templates", &resource_templates)?;
        context.write("prompts", &prompts)?;
        Ok(metrics([
            ("tools", count as f64),
            ("resources", resources.len() as f64),
            ("prompts", prompts.len() as f64),
        ]))
    }
}

impl StageKind for Discover {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, error::Result<Metrics>> {
        Box::pin(self.list(context))
    }

    /// Finds tools that are both allowed and denied.
    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        let mut preflight = Preflight::default();
        if let Some(name) = self.deny.iter().find(|name| self.allow.contains(name)) {
            preflight.error("deny", DiscoverError::Both { name: name.clone() });
        }
        match (context.finished)("tools") {
            Some(table) => {
                let is_whole = self.allow.is_empty() && self.deny.is_empty() && !self.read_only;
                preflight.with("tools", ExpectedOutput::Tools { table, is_whole })
            }
            None => preflight,
        }
    }

    fn about_tools(&self, listed: &[Tool], servers: &Servers) -> Vec<Requirement> {
        let offered = Offered { tools: listed.to_vec(), ..Offered::default() };
        self.written(offered, servers)
            .err()
            .map(|cause| Requirement::Missing(cause.into()))
            .into_iter()
            .collect()
    }

    fn offers(&self, offered: Offered, servers: &Servers) -> Option<Offered> {
        Some(self.written(offered, servers).ok()?.0)
    }
}

impl Discover {
    /// What is written of what the servers offer, and the tools left out for what they may do.
    fn written(&self, offered: Offered, servers: &Servers) -> Result<(Offered, LeftOut), DiscoverError> {
        let (tools, left_out) = self.chosen(offered.tools, servers)?;
        let mut written = Offered { tools: self.overridden(tools)?, ..offered };
        let digest = tools_digest(&written.tools.iter().map(offered::tool).collect::<Vec<_>>()).to_string();
        written.servers.iter_mut().for_each(|row| row.tools_digest.clone_from(&digest));
        Ok((written, left_out))
    }

    /// The tools that the agent gets, and those left out for what they may do, by reason.
    fn chosen(&self, listed: Vec<Tool>, servers: &Servers) -> Result<(Vec<Tool>, LeftOut), DiscoverError> {
        let reset_tools = servers.iter().filter_map(|(name, spec)| {
            let tool = spec.state.reset_tool()?;
            Some(if name.is_empty() { tool.to_owned() } else { format!("{name}/{tool}") })
        });
        let tools = self.filter(listed, &reset_tools.collect::<Vec<_>>())?;
        self.without_unsafe(tools, servers)
    }

    /// The tools that the agent sees. The reset tool is none of them, unless `allow` names it.
    fn filter(&self, tools: Vec<Tool>, reset_tools: &[String]) -> Result<Vec<Tool>, DiscoverError> {
        let meant = |name: &str| meant(&tools, name);
        for (list, names) in [("allow", &self.allow), ("deny", &self.deny)] {
            for name in names {
                if !tools.iter().any(|tool| is_named(tool, name)) {
                    return Err(DiscoverError::UnknownTool { list, name: name.clone(), meant: meant(name) });
                }
            }
        }
        if let Some(name) =
            reset_tools.iter().find(|name| !tools.iter().any(|tool| tool.server_name == **name))
        {
            return Err(DiscoverError::NoResetTool { name: name.to_owned(), meant: meant(name) });
        }
        let listed = tools.iter().filter(|tool| !tool.synthetic).count();
        let is_hidden = |tool: &Tool| reset_tools.contains(&tool.server_name) && !self.allows(tool);
        let keeps = |tool: &Tool| tool.synthetic || self.keeps(tool) && !is_hidden(tool);
        let kept: Vec<Tool> = tools.into_iter().filter(keeps).collect();
        if kept.iter().all(|tool| tool.synthetic) {
            return Err(DiscoverError::NoTools { listed });
        }
        Ok(kept)
    }

    /// Without the tools whose declared effects outlive an episode, and those by reason.
    fn without_unsafe(
        &self,
        tools: Vec<Tool>,
        servers: &Servers,
    ) -> Result<(Vec<Tool>, LeftOut), DiscoverError> {
        let listed = tools.iter().filter(|tool| !tool.synthetic).count();
        let (mut kept, mut left_out) = (Vec::new(), LeftOut::new());
        for tool in tools {
            let spec = servers.of_tool(&tool.server_name).filter(|_| !tool.synthetic && !self.allows(&tool));
            match spec.and_then(|spec| self.why_unsafe(&tool, spec)) {
                Some(why) => left_out.entry(why).or_default().push(tool.name),
                None => kept.push(tool),
            }
        }
        match kept.iter().all(|tool| tool.synthetic) {
            true => Err(DiscoverError::NoTools { listed }),
            false => Ok((kept, left_out)),
        }
    }

    /// Tools of a server whose calls are to change nothing that neither the server nor the run file vouches for.
    fn silent<'t>(&self, tools: &'t [Tool], servers: &Servers) -> Vec<&'t str> {
        let is_read_only = |tool: &Tool| {
            servers.of_tool(&tool.server_name).is_some_and(|spec| spec.state == State::ReadOnly)
        };
        let is_silent = |tool: &&Tool| {
            !tool.synthetic && tool.hint("readOnlyHint").is_none() && !self.allows(tool) && is_read_only(tool)
        };
        tools.iter().filter(is_silent).map(|tool| &*tool.name).collect()
    }

    /// Why a tool should not be called freely.
    fn why_unsafe(&self, tool: &Tool, spec: &ServerSpec) -> Option<&'static str> {
        let is_closed = |sandbox: &Sandbox| !sandbox.network && sandbox.write.is_empty();
        let is_contained = spec.limits.sandbox.as_ref().is_some_and(is_closed) || spec.isolates();
        match (tool.hint("readOnlyHint"), tool.hint("destructiveHint")) {
            (Some(false), _) | (_, Some(true)) if spec.state == State::ReadOnly => Some(
                "contradict state = \"read-only\": the server says that they change something; `allow` keeps them by name",
            ),
            (_, Some(true)) if !self.destructive && !is_contained => Some(
                "the server declares destructive; a closed sandbox, state = \"snapshot-dir\" or `destructive = true` keeps them",
            ),
            _ => None,
        }
    }

    /// The tools with the texts of the run file.
    fn overridden(&self, mut tools: Vec<Tool>) -> Result<Vec<Tool>, DiscoverError> {
        for (name, texts) in self.overrides.iter().flatten() {
            // By the agent's name first, which `complete_task` has too.
            let place = tools.iter().position(|tool| tool.name == *name);
            let place = place.or_else(|| tools.iter().position(|tool| is_named(tool, name)));
            let Some(tool) = place.and_then(|place| tools.get_mut(place)) else {
                let (name, meant) = (name.clone(), meant(&tools, name));
                return Err(DiscoverError::UnknownTool { list: "overrides", name, meant });
            };
            override_texts(tool, texts)?;
        }
        Ok(tools)
    }

    fn allows(&self, tool: &Tool) -> bool {
        self.allow.iter().any(|name| is_named(tool, name))
    }

    fn keeps(&self, tool: &Tool) -> bool {
        (self.allow.is_empty() || self.allows(tool))
            && !self.deny.iter().any(|name| is_named(tool, name))
            && (!self.read_only || tool.hint("readOnlyHint") == Some(true))
    }
}

/// A note for each tool that has limits in the run file and that the server does not list.
fn unknown_limits(servers: &Servers, server: &str, listed: &[Tool]) -> Vec<String> {
    let spec = servers.iter().find(|(name, _)| *name == server).map(|(_, spec)| spec);
    let limited = spec.into_iter().flat_map(|spec| spec.limits.tools.keys());
    let names = || listed.iter().filter(|tool| !tool.synthetic).map(|tool| tool.server_name.as_str());
    let unknown = limited.filter(|limited| !names().any(|name| name == *limited));
    let note = |name: &String| {
        let meant = did_you_mean(name, names()).map(|meant| format!("; did you mean `{meant}`?"));
        format!(
            "`tools.{name}` sets limits of a tool that the server does not list{}",
            meant.unwrap_or_default()
        )
    };
    unknown.map(note).collect()
}

fn of_server(name: &str) -> String {
    if name.is_empty() { "the server".into() } else { format!("server \"{name}\"") }
}

/// Replaces the description and those of parameters, wherever the agent may see them.
fn override_texts(tool: &mut Tool, texts: &ToolTexts) -> Result<(), DiscoverError> {
    if !tool.synthetic {
        tool.keep_listed();
    }
    let mut function: Value = serde_json::from_str(&tool.function).unwrap_or_default();
    let mut schema: Value = serde_json::from_str(&tool.input_schema).unwrap_or_default();
    if let Some(description) = &texts.description {
        tool.description.clone_from(description);
        function["description"] = description.as_str().into();
    }
    for (parameter, description) in &texts.parameters {
        for schema in [&mut schema, &mut function["parameters"]] {
            let mut properties = schema.get_mut("properties").and_then(Value::as_object_mut);
            let property = properties.as_mut().and_then(|properties| properties.get_mut(parameter));
            let Some(property) = property.and_then(Value::as_object_mut) else {
                let known = properties.iter().flat_map(|properties| properties.keys()).map(String::as_str);
                return Err(DiscoverError::UnknownParameter {
                    tool: tool.name.clone(),
                    parameter: parameter.clone(),
                    meant: did_you_mean(parameter, known).map(str::to_owned),
                });
            };
            property.insert("description".into(), description.as_str().into());
        }
    }
    (tool.function, tool.input_schema) = (function.to_string(), schema.to_string());
    Ok(())
}

/// The name of a tool that is like this one.
fn meant(tools: &[Tool], name: &str) -> Option<String> {
    let known = tools.iter().filter(|tool| !tool.synthetic).map(|tool| &*tool.name);
    did_you_mean(name, known).map(str::to_owned)
}

/// Matches the agent's name or the server's.
fn is_named(tool: &Tool, name: &str) -> bool {
    !tool.synthetic && (tool.name == name || tool.server_name == name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::{
        data::{self, Prompt, Resource, ResourceTemplate, Server},
        demo::HttpServer,
        error::Result,
        mcp::{Limits, ServerSpec, Transport},
        stage::testing,
    };

    async fn discover(server: Option<ServerSpec>, output: &Path) -> Result<Metrics> {
        let params = json!({"read_only": true, "deny": ["list_tables"]});
        let (mut context, _) = testing::context("discover", &[], output, params);
        context.servers = server.map(Into::into);
        testing::run(&context).await
    }

    #[tokio::test]
    async fn what_the_server_offers_is_written() {
        let server = HttpServer::bind("sqlite", "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let transport = Transport::http(server.url().unwrap());
        tokio::spawn(server.serve());
        let spec = ServerSpec::new(transport, State::ReadOnly);
        let folder = tempfile::tempdir().unwrap();
        let metrics = discover(Some(spec), folder.path()).await.unwrap();

        assert_eq!(
            metrics,
            Metrics::from([("tools".into(), 2.0), ("resources".into(), 0.0), ("prompts".into(), 0.0)])
        );
        let tools: Vec<Tool> = data::read(&folder.path().join("tools.parquet")).unwrap();
        let names: Vec<&str> = tools.iter().map(|tool| &*tool.name).collect();
        assert_eq!(names, ["describe_table", "run_query", "complete_task"]);
        let servers: Vec<Server> = data::read(&folder.path().join("server.parquet")).unwrap();
        assert_eq!(
            servers[0].tools_digest,
            tools_digest(&tools.iter().map(offered::tool).collect::<Vec<_>>()).to_string()
        );
        assert_eq!(data::read::<Resource>(&folder.path().join("resources.parquet")).unwrap(), []);
        let templates = folder.path().join("resource_templates.parquet");
        assert_eq!(data::read::<ResourceTemplate>(&templates).unwrap(), []);
        assert_eq!(data::read::<Prompt>(&folder.path().join("prompts.parquet")).unwrap(), []);
    }

    #[tokio::test]
    async fn discovery_needs_a_server() {
        let folder = tempfile::tempdir().unwrap();
        let error = discover(None, folder.path()).await.unwrap_err();
        assert_eq!(error.code(), "discover::no_server");
    }

    fn tool(name: &str, annotations: Option<&str>, synthetic: bool) -> Tool {
        Tool {
            name: name.replace('.', "_"),
            server_name: if synthetic { String::new() } else { name.to_owned() },
            description: String::new(),
            input_schema: "{}".into(),
            output_schema: None,
            annotations: annotations.map(str::to_owned),
            function: "{}".into(),
            synthetic,
            listed: None,
        }
    }

    fn check(read_only: bool, allow: &[&str], deny: &[&str]) -> Result<String, String> {
        check_with(None, read_only, allow, deny)
    }

    fn check_with(
        reset_tool: Option<&str>,
        read_only: bool,
        allow: &[&str],
        deny: &[&str],
    ) -> Result<String, String> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let tools = vec![
            tool("db.read", Some(r#"{"readOnlyHint": true}"#), false),
            tool("db.write", Some(r#"{"readOnlyHint": false}"#), false),
            tool("db.drop", None, false),
            tool("complete_task", None, true),
        ];
        let params = Discover {
            read_only,
            destructive: false,
            allow: owned(allow),
            deny: owned(deny),
            overrides: None,
        };
        let reset_tools: Vec<String> = reset_tool.map(str::to_owned).into_iter().collect();
        let kept = params.filter(tools, &reset_tools);
        let names = |tools: Vec<Tool>| tools.into_iter().map(|tool| tool.name).collect::<Vec<_>>().join(" ");
        kept.map(names).map_err(|error| format!("{error}; {}", error.hint().unwrap_or_default()))
    }

    #[test]
    fn tools_are_kept_by_annotation_and_by_either_name() {
        let kept = |read_only, allow: &[&str], deny: &[&str]| check(read_only, allow, deny).unwrap();
        assert_eq!(kept(false, &[], &[]), "db_read db_write db_drop complete_task");
        assert_eq!(kept(true, &[], &[]), "db_read complete_task");
        assert_eq!(kept(false, &["db.write", "db_read"], &[]), "db_read db_write complete_task");
        assert_eq!(kept(false, &[], &["db_drop"]), "db_read db_write complete_task");
    }

    #[test]
    fn the_reset_tool_is_kept_only_if_it_is_allowed_by_name() {
        let kept = |allow: &[&str]| check_with(Some("db.drop"), false, allow, &[]);
        assert_eq!(kept(&[]).unwrap(), "db_read db_write complete_task");
        assert_eq!(kept(&["db_drop", "db_read"]).unwrap(), "db_read db_drop complete_task");
        let refused = check_with(Some("db_drop"), false, &[], &[]).unwrap_err();
        insta::assert_snapshot!(refused, @"`reset_tool` names `db_drop`, which is not a tool of the server; did you mean `db_drop`?");
    }

    #[test]
    fn tools_whose_effects_outlive_an_episode_are_left_out() {
        let kept = |state: State, sandbox: Option<Sandbox>, destructive: bool, allow: &[&str]| {
            let tools = vec![
                tool("read", Some(r#"{"readOnlyHint": true}"#), false),
                tool("write", Some(r#"{"readOnlyHint": false, "destructiveHint": false}"#), false),
                tool("drop", Some(r#"{"destructiveHint": true}"#), false),
                tool("odd", None, false),
                tool("complete_task", None, true),
            ];
            let limits = Limits { sandbox, ..Limits::default() };
            let servers = ServerSpec { limits, ..ServerSpec::new(Transport::http("http://x"), state) }.into();
            let allow = allow.iter().map(|name| (*name).to_owned()).collect();
            let params = Discover { read_only: false, destructive, allow, deny: Vec::new(), overrides: None };
            let (kept, left_out) = params.without_unsafe(tools, &servers).unwrap();
            let kept: Vec<String> = kept.into_iter().map(|tool| tool.name).collect();
            (kept.join(" "), left_out.into_values().flatten().collect::<Vec<_>>().join(" "))
        };
        let pair = |kept: &str, left_out: &str| (kept.to_owned(), left_out.to_owned());
        let tools = ["read", "drop"].map(|name| tool(name, None, false));
        let silent = |state: State, allow: &[&str]| {
            let servers = ServerSpec::new(Transport::http("http://x"), state).into();
            let allow = allow.iter().map(|name| (*name).to_owned()).collect();
            let params =
                Discover { read_only: false, destructive: false, allow, deny: Vec::new(), overrides: None };
            params.silent(&tools, &servers).join(" ")
        };
        assert_eq!(silent(State::ReadOnly, &[]), "read drop", "nobody says that they change nothing");
        assert_eq!(silent(State::ReadOnly, &["read"]), "drop");
        assert_eq!(silent(State::FreshProcess, &[]), "");
        let (read_only, fresh) = (|| State::ReadOnly, || State::FreshProcess);
        assert_eq!(kept(read_only(), None, false, &[]), pair("read odd complete_task", "write drop"));
        assert_eq!(kept(read_only(), None, false, &["drop"]), pair("read drop odd complete_task", "write"));
        assert_eq!(kept(fresh(), None, false, &[]), pair("read write odd complete_task", "drop"));
        let all = pair("read write drop odd complete_task", "");
        assert_eq!(kept(fresh(), None, true, &[]), all);
        assert_eq!(kept(fresh(), Some(Sandbox::default()), false, &[]), all);
        let open = Sandbox { network: false, write: vec!["data".into()] };
        assert_eq!(kept(fresh(), Some(open), false, &[]), pair("read write odd complete_task", "drop"));
        assert_eq!(kept(State::SnapshotDir("x".into()), None, false, &[]), all);
    }

    #[test]
    fn a_filter_that_matches_nothing_is_an_error() {
        let refused = |read_only, allow: &[&str], deny: &[&str]| check(read_only, allow, deny).unwrap_err();
        insta::assert_snapshot!(refused(false, &[], &["db_dorp"]), @"`deny` names `db_dorp`, which is not a tool of the server; did you mean `db_drop`?");
        insta::assert_snapshot!(refused(true, &["db_drop"], &[]), @"no tool is left: the server lists 3; loosen `read_only`, `allow` or `deny`");
        insta::assert_snapshot!(refused(false, &["complete_task"], &[]), @"`allow` names `complete_task`, which is not a tool of the server; ");
    }

    #[test]
    fn complete_task_has_the_description_of_the_run_file() {
        let texts = json!({"complete_task": {"description": "Ends it."}, "complete_task_2": {"description": "Mine."}});
        let overrides = serde_json::from_value(texts).unwrap();
        let params =
            Discover { read_only: false, destructive: false, allow: vec![], deny: vec![], overrides };
        let own = Tool { name: "complete_task_2".into(), ..tool("complete_task", None, false) };
        let tools = params.overridden(vec![own, tool("complete_task", None, true)]).unwrap();
        let described: Vec<_> = tools.iter().map(|tool| (&*tool.description, &*tool.function)).collect();
        let function = |text: &str| format!(r#"{{"description":"{text}"}}"#);
        assert_eq!(described, [("Mine.", &*function("Mine.")), ("Ends it.", &*function("Ends it."))]);
        // As if mcprl described it so: the table is the same.
        assert_eq!((tools[0].listed.is_some(), tools[1].listed.is_some()), (true, false));
    }
}
