//! Rewrites template source that minijinja reads differently than Jinja2.
//!
//! | in the template | in Jinja2 | rewritten to |
//! |---|---|---|
//! | `{% generation %}` | marks model output, for training | a condition that is always true |
//! | `x.items`, not called | the method of a mapping, whatever its keys | a call that returns it |
//! | `x['items']` | the key, otherwise the method | a call that returns it |
//! | `a ~ b` | joins `str(a)` and `str(b)` | `a \| string ~ b \| string` |
//! | `a + b` | the same, of any size | `a \| operand_of_sum + b`, which limits the size |

use super::methods::{ATTRIBUTE, ITEM, is_mapping_method};

/// The filter that checks the size of an operand of `+`.
pub const OPERAND: &str = "operand_of_sum";

/// The rewritten source. Everything else, including white space, is unchanged.
pub fn rewritten(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{{").into_iter().chain(rest.find("{%")).chain(rest.find("{#")).min() {
        let (text, tag) = rest.split_at(at);
        out.push_str(text);
        let end = match &tag[..2] {
            "{#" => tag.find("#}").map(|end| end + 2),
            "{%" => raw_end(tag).or_else(|| expression_end(tag, "%}")),
            _ => expression_end(tag, "}}"),
        };
        // minijinja reports unclosed tags.
        let (inside, after) = tag.split_at(end.unwrap_or(tag.len()));
        if inside.starts_with("{#") || end.is_none() || raw_end(tag).is_some() {
            out.push_str(inside);
        } else {
            out.push_str(&expression(&without_generation(inside)));
        }
        rest = after;
    }
    out + rest
}

fn word(tag: &str) -> &str {
    word_at(tag.get(2..).unwrap_or("").trim_start_matches(['-', '+']).trim_start())
}

/// The end of the block that a `raw` tag opens.
fn raw_end(tag: &str) -> Option<usize> {
    if word(tag) != "raw" {
        return None;
    }
    let mut from = 2;
    while let Some(at) = tag[from..].find("{%") {
        let at = from + at;
        if word(&tag[at..]) == "endraw" {
            return Some(at + tag[at..].find("%}")? + 2);
        }
        from = at + 2;
    }
    None
}

/// The end of a tag, skipping strings and brackets in it.
fn expression_end(tag: &str, close: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, letter) in outside_strings(tag, 2) {
        if depth == 0 && tag[at..].starts_with(close) {
            return Some(at + close.len());
        }
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// Length in bytes of the string literal at the start of a text.
fn string_len(text: &str) -> Option<usize> {
    let quote = text.chars().next()?;
    let mut escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if letter == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

fn without_generation(tag: &str) -> String {
    match word(tag) {
        "generation" => tag.replacen("generation", "if true", 1),
        "endgeneration" => tag.replacen("endgeneration", "endif", 1),
        _ => tag.to_owned(),
    }
}

/// The rewritten tag, or operand of `~`.
fn expression(tag: &str) -> String {
    let mut out = String::with_capacity(tag.len());
    let mut at = 0;
    // Products bind tighter than `~`: only their last factor would become text.
    let body = tag.strip_prefix("{%").unwrap_or(tag);
    let body = body.strip_suffix("%}").unwrap_or(body);
    let joins = !outside_strings(body, 0).any(|(_, letter)| "*/%".contains(letter));
    while let Some(letter) = tag[at..].chars().next() {
        let (taken, written) = match letter {
            '~' if joins => joined(&tag[at..]),
            '"' | '\'' => (string_len(&tag[at..]).unwrap_or(tag.len() - at), None),
            // There is no unary `+`: otherwise it trims spaces.
            '+' if is_operand(&out) && !ends_tag(&tag[at + 1..]) => (1, Some(format!("| {OPERAND} +"))),
            '.' => attribute(&tag[at..]),
            // After a value this is a subscript, not a list.
            '[' if out.ends_with(|c: char| c.is_alphanumeric() || "_)]".contains(c)) => item(&tag[at..]),
            _ => (letter.len_utf8(), None),
        };
        match written {
            Some(written) => out.push_str(&written),
            None => out.push_str(&tag[at..at + taken]),
        }
        at += taken;
    }
    out
}

/// Whether a text ends with an operand.
fn is_operand(text: &str) -> bool {
    text.trim_end().ends_with(|c: char| c.is_alphanumeric() || "_)]}'\"".contains(c))
}

/// Whether a text begins with the end of a tag.
fn ends_tag(text: &str) -> bool {
    text.starts_with("%}") || text.starts_with("}}")
}

/// The characters outside strings from a place on, each with its place. They end at a string that is not closed.
fn outside_strings(text: &str, mut at: usize) -> impl Iterator<Item = (usize, char)> {
    std::iter::from_fn(move || {
        let mut letter = text[at..].chars().next()?;
        while matches!(letter, '"' | '\'') {
            at += string_len(&text[at..])?;
            letter = text[at..].chars().next()?;
        }
        at += letter.len_utf8();
        Some((at - letter.len_utf8(), letter))
    })
}

/// `~` and the operand after it.
fn joined(text: &str) -> (usize, Option<String>) {
    let after = text[1..].trim_start();
    let start = text.len() - after.len();
    let Some(length) = operand(after) else { return (1, None) };
    let rest = after[length..].trim_start();
    // A following `~` converts it to text; a test with `is` gives only true or false.
    let last = if rest.starts_with('~') || word_at(rest) == "is" { "" } else { " | string" };
    let written = format!("| string ~{}{}{last}", &text[1..start], expression(&after[..length]));
    (start + length, Some(written))
}

/// Length in bytes of the operand at the start of a text: a name, a literal or brackets, with the calls, items, attributes
/// and filters after it.
fn operand(text: &str) -> Option<usize> {
    let spaces = |at: usize| text.len() - text[at..].trim_start().len();
    let mut at = text.len() - text.trim_start_matches(['-', '+', ' ']).len();
    match text[at..].chars().next()? {
        '"' | '\'' => {
            while text[spaces(at)..].starts_with(['"', '\'']) {
                at = spaces(at) + string_len(&text[spaces(at)..])?;
            }
        }
        '(' | '[' | '{' => at += group_len(&text[at..])?,
        _ => match word_at(&text[at..]) {
            "" | "not" => return None,
            word => at += word.len(),
        },
    }
    loop {
        let next = spaces(at);
        at = match text[next..].chars().next() {
            Some('.' | '|') => {
                let name = spaces(next + 1);
                name + word_at(&text[name..]).len()
            }
            Some('(' | '[') => next + group_len(&text[next..])?,
            _ => return Some(at),
        };
    }
}

/// Length in bytes of the bracketed group at the start of a text.
fn group_len(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, letter) in outside_strings(text, 0) {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 1 => return Some(at + 1),
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// `.items`, not called and not assigned to.
fn attribute(text: &str) -> (usize, Option<String>) {
    let name = word_at(&text[1..]);
    let end = 1 + name.len();
    let after = text[end..].trim_start();
    let assigned = after.starts_with('=') && !after.starts_with("==");
    if !is_mapping_method(name) || after.starts_with('(') || assigned {
        return (end, None);
    }
    (end, Some(format!(".{ATTRIBUTE}{name}()")))
}

/// `['items']`.
fn item(text: &str) -> (usize, Option<String>) {
    let inside = text[1..].trim_start();
    let start = text.len() - inside.len();
    let length = match inside.chars().next() {
        Some('"' | '\'') => string_len(inside).unwrap_or(0),
        _ => 0,
    };
    let name = inside.get(1..length.saturating_sub(1)).unwrap_or("");
    let after = inside[length..].trim_start();
    if !is_mapping_method(name) || !after.starts_with(']') || after[1..].trim_start().starts_with('(') {
        return (1, None);
    }
    let end = start + length + (inside.len() - length - after.len()) + 1;
    (end, Some(format!(".{ITEM}{name}()")))
}

fn word_at(text: &str) -> &str {
    &text[..text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_minijinja_reads_differently_is_changed() {
        let same = [
            "plain .items ['items'] text",
            "{# x.items #}",
            "{% raw %}{{ x.items }}{% endraw %}",
            "{{ x.items() }}{{ x . items }}{{ 'x.items' }}{{ \"['items']\" }}",
            "{% set ns.items = [] %}{{ ['items'] }}{{ f(x, ['items']) }}{% if x in ['items'] %}",
            "{{ {'a': {'}}': 1}} }}",
            "{{ a * b ~ c }}{{ '~' }}~{# ~ #}{{ a ~",
            "{{ never closed.items",
            "{{ 'never closed",
        ];
        for source in same {
            assert_eq!(rewritten(source), source);
        }
        let changed = [
            ("{{ x.items }}", "{{ x.attribute_of_mapping_items() }}"),
            (
                "{% if x.items.y and a['items'].z %}",
                "{% if x.attribute_of_mapping_items().y and a.item_of_mapping_items().z %}",
            ),
            ("{{ a ~ b }}", "{{ a | string ~ b | string }}"),
            (
                "{{+ a + 'b' +c * (d+ 1) +}}",
                "{{+ a | operand_of_sum + 'b' | operand_of_sum +c * (d| operand_of_sum + 1) +}}",
            ),
            (
                "{%- set x = a.b['~'] ~ -f(c ~ 1)[0] | trim(d) ~ ('e' if g else 'h') 'i' -%}",
                "{%- set x = a.b['~'] | string ~ -f(c | string ~ 1 | string)[0] | trim(d) | string ~ ('e' if g else 'h') | string 'i' -%}",
            ),
            (
                "{% if a ~ 'b' 'c' == d ~ e is string %}",
                "{% if a | string ~ 'b' 'c' | string == d | string ~ e is string %}",
            ),
            (
                "{{ x[ \"get\" ] }}{% raw %}.items{% endraw %}",
                "{{ x.item_of_mapping_get() }}{% raw %}.items{% endraw %}",
            ),
            ("{%- generation -%}x{%+ endgeneration %}", "{%- if true -%}x{%+ endif %}"),
            (
                "{# {% generation %} #}{{ '{% generation %}' }}",
                "{# {% generation %} #}{{ '{% generation %}' }}",
            ),
        ];
        for (source, expected) in changed {
            assert_eq!(rewritten(source), expected);
        }
    }
}
