//! Dates, times, durations and powers of ten in one form: `2025-03-01`, `21:30`, `2025-03-01 21:30`, `2h 15m`, `2.5e6`.

use std::sync::LazyLock;

use regex::{Captures, Regex};

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

macro_rules! pattern {
    ($name:ident, $pattern:expr) => {
        static $name: LazyLock<Regex> = LazyLock::new(|| Regex::new($pattern).expect("the pattern is valid"));
    };
}

const MONTH: &str = "(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|\
                     nov(?:ember)?|dec(?:ember)?)";
pattern!(DAY_FIRST, &format!(r"(?i)\b(\d{{1,2}})(?:st|nd|rd|th|\.)?(?: of)? ({MONTH})\.?,? (\d{{4}})\b"));
pattern!(MONTH_FIRST, &format!(r"(?i)\b({MONTH})\.? (\d{{1,2}})(?:st|nd|rd|th)?,? (\d{{4}})\b"));
pattern!(NUMERIC, r"\b(\d{1,2})([./])(\d{1,2})[./](\d{4})\b");
pattern!(SLASHED, r"\b(\d{4})[/.](\d{1,2})[/.](\d{1,2})\b");
pattern!(HALF_DAY, r"(?i)\b(\d{1,2})(?:[:.](\d{2}))?(?::(\d{2}))? ?([ap])\.?m\b\.?");
pattern!(POWER, r"(\d) ?[×x·] ?10(?:\^|\*\*)([-−]?\d+)");
pattern!(DURATION, r"(?i)\b(\d+) ?(?:h|hrs?|hours?)(?:,? and |, | )?(\d+) ?(?:m|mins?|minutes?)\b");
pattern!(CODE, r"\+?\b\d+(?:[- ]\d+)+\b");
pattern!(
    JOINED,
    r"(?i)(\d{4}-\d{2}-\d{2})(?:t|,? (?:at )?)(\d{1,2}:\d{2})(:\d{2})?(?:\.0+)?(?: ?(?:z\b|utc\b|\+00:?00))?"
);

/// The text with its dates and times in one form. A date that can be read in two ways, such as `03/04/2025`, stays as it is.
pub fn in_one_form(text: &str) -> String {
    if !text.bytes().any(|byte| byte.is_ascii_digit()) {
        return text.to_owned();
    }
    let text = POWER.replace_all(text, "${1}e$2");
    let text = DAY_FIRST.replace_all(&text, |at: &Captures<'_>| date(at, &at[3], &at[2], &at[1]));
    let text = MONTH_FIRST.replace_all(&text, |at: &Captures<'_>| date(at, &at[3], &at[1], &at[2]));
    let text = NUMERIC.replace_all(&text, |at: &Captures<'_>| {
        let is_above = |part: &str| part.parse::<u8>().is_ok_and(|part| part > 12);
        match (&at[2], is_above(&at[1]), is_above(&at[3])) {
            ("/", false, true) => date(at, &at[4], &at[1], &at[3]),
            ("/", false, false) if at[1] != at[3] => at[0].to_owned(),
            _ => date(at, &at[4], &at[3], &at[1]),
        }
    });
    let text = SLASHED.replace_all(&text, |at: &Captures<'_>| date(at, &at[1], &at[2], &at[3]));
    let text = HALF_DAY.replace_all(&text, |at: &Captures<'_>| half_day(at));
    let text = JOINED.replace_all(&text, |at: &Captures<'_>| {
        let seconds = at.get(3).map_or("", |seconds| seconds.as_str());
        format!("{} {:0>5}{}", &at[1], &at[2], if seconds == ":00" { "" } else { seconds })
    });
    DURATION.replace_all(&text, "${1}h ${2}m").into_owned()
}

/// The text with the digits of long codes together, as in `9783161484100` for `978-3-16-148410-0`.
pub fn with_codes_joined(text: &str) -> String {
    let joined = CODE.replace_all(text, |at: &Captures<'_>| at[0].replace(['-', ' '], ""));
    joined.into_owned()
}

/// The date, or the text as it stands if there is no such day.
fn date(at: &Captures<'_>, year: &str, month: &str, day: &str) -> String {
    let lower = month.to_lowercase();
    let named = MONTHS.iter().position(|name| lower.starts_with(name)).map(|place| place + 1);
    let month = named.or_else(|| month.parse().ok()).filter(|month| (1..=12).contains(month));
    let day = day.parse::<u8>().ok().filter(|day| (1..=31).contains(day));
    match (month, day) {
        (Some(month), Some(day)) => format!("{year}-{month:02}-{day:02}"),
        _ => at[0].to_owned(),
    }
}

fn half_day(at: &Captures<'_>) -> String {
    let is_afternoon = at[4].eq_ignore_ascii_case("p");
    let minutes = at.get(2).map_or("00", |minutes| minutes.as_str());
    let seconds = at.get(3).map_or("", |seconds| seconds.as_str());
    match at[1].parse::<u8>() {
        Ok(hour @ 1..=12) => {
            let hour = hour % 12 + if is_afternoon { 12 } else { 0 };
            let colon = if seconds.is_empty() { "" } else { ":" };
            format!("{hour:02}:{minutes}{colon}{seconds}")
        }
        _ => at[0].to_owned(),
    }
}
