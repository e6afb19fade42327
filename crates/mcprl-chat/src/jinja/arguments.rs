//! Binds call arguments to parameter names as Python does.

use minijinja::{Error, ErrorKind, Value, value::Kwargs};

type Named = Vec<(String, Value)>;

/// Positional arguments, and those by name.
pub fn split(arguments: &[Value]) -> Result<(&[Value], Named), Error> {
    let Some((last, positional)) = arguments.split_last().filter(|(last, _)| last.is_kwargs()) else {
        return Ok((arguments, Vec::new()));
    };
    let named = Kwargs::try_from(last.clone())?;
    let mut values = Vec::new();
    for name in named.args() {
        values.push((name.to_owned(), named.get(name)?));
    }
    Ok((positional, values))
}

/// Arguments as one list, those by name last.
pub fn joined(positional: impl IntoIterator<Item = Value>, named: &Kwargs) -> Vec<Value> {
    let named = named.args().next().is_some().then(|| Value::from(named.clone()));
    positional.into_iter().chain(named).collect()
}

/// An argument that is given and is not `none`.
pub fn given(value: Option<Value>) -> Option<Value> {
    value.filter(|value| !value.is_none())
}

/// A switch: false if it is not given.
pub fn is_true(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.is_true())
}

/// Binds arguments to these parameters, by position or by name.
///
/// # Errors
/// For too many arguments, unknown names, and an argument given twice.
pub fn bound<const N: usize>(arguments: &[Value], names: [&str; N]) -> Result<[Option<Value>; N], Error> {
    let (positional, named) = split(arguments)?;
    if positional.len() > N {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut values = [const { None }; N];
    for (place, value) in values.iter_mut().zip(positional) {
        *place = Some(value.clone());
    }
    for (name, value) in named {
        let wrong = |why: String| Err(Error::new(ErrorKind::TooManyArguments, why));
        let place = names.iter().position(|known| *known == name).and_then(|at| values.get_mut(at));
        match place {
            Some(place @ None) => *place = Some(value),
            Some(Some(_)) => return wrong(format!("`{name}` is given twice")),
            None => return wrong(format!("there is no argument `{name}`")),
        }
    }
    Ok(values)
}
