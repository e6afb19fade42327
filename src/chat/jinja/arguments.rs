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
        let place = names.iter().position(|known| *known == name).and_then(|at| values.get_mut(at));
        match place {
            Some(place @ None) => *place = Some(value),
            Some(Some(_)) => {
                return Err(Error::new(ErrorKind::TooManyArguments, format!("`{name}` is given twice")));
            }
            None => {
                return Err(Error::new(
                    ErrorKind::TooManyArguments,
                    format!("there is no argument `{name}`"),
                ));
            }
        }
    }
    Ok(values)
}
