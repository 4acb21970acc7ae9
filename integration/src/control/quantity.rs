//! Kubernetes quantities (`16Gi`, `500m`, `1e3`) as numbers that compare.

use std::fmt;

const NANO: i128 = 1_000_000_000;

/// A quantity in billionths, the smallest unit of the notation: exact for all that the API accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(i128);

impl Quantity {
    /// Reads a quantity; `None` if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let digits_end = text
            .char_indices()
            .find(|&(i, c)| !(c.is_ascii_digit() || c == '.' || (i == 0 && (c == '+' || c == '-'))))
            .map_or(text.len(), |(i, _)| i);
        let (number, suffix) = text.split_at(digits_end);
        let scale = scale(suffix)?;
        let (negative, number) = match number.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, number.strip_prefix('+').unwrap_or(number)),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
        let mut nano = scaled(digits, scale)?;
        let divisor = 10i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        // What is finer than the notation's smallest unit rounds up, as the API does.
        nano = nano / divisor + i128::from(nano % divisor != 0);
        Some(Self(if negative { -nano } else { nano }))
    }

    /// A whole number.
    pub fn whole(value: i64) -> Self {
        Self(i128::from(value) * NANO)
    }

    /// The value if it is a whole number that fits.
    pub fn as_integer(self) -> Option<i64> {
        (self.0 % NANO == 0).then(|| i64::try_from(self.0 / NANO).ok()).flatten()
    }

    /// The nearest floating-point number.
    pub fn as_float(self) -> f64 {
        self.0 as f64 / NANO as f64
    }

    /// -1, 0 or 1.
    pub fn sign(self) -> i64 {
        self.0.signum() as i64
    }
}

impl std::ops::Add for Quantity {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::ops::Sub for Quantity {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_integer() {
            Some(whole) => write!(f, "{whole}"),
            None => write!(f, "{}", self.as_float()),
        }
    }
}

/// A suffix's factor as mantissa and power of ten, in billionths.
fn scale(suffix: &str) -> Option<(i128, i32)> {
    let binary = |power: u32| Some((1i128 << (10 * power), 9));
    match suffix {
        "n" => Some((1, 0)),
        "u" => Some((1, 3)),
        "m" => Some((1, 6)),
        "" => Some((1, 9)),
        "k" => Some((1, 12)),
        "M" => Some((1, 15)),
        "G" => Some((1, 18)),
        "T" => Some((1, 21)),
        "P" => Some((1, 24)),
        "E" => Some((1, 27)),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        exponent => {
            let power: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            (-18..=18).contains(&power).then_some((1, 9 + power))
        }
    }
}

fn scaled(digits: i128, (mantissa, power): (i128, i32)) -> Option<i128> {
    let product = digits.checked_mul(mantissa)?;
    match u32::try_from(power) {
        Ok(power) => product.checked_mul(10i128.checked_pow(power)?),
        Err(_) => {
            let divisor = 10i128.checked_pow(power.unsigned_abs())?;
            Some(product / divisor + i128::from(product % divisor != 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notations_of_one_number_are_equal() {
        for (a, b) in [
            ("1Ki", "1024"),
            ("1k", "1000"),
            ("1.5Gi", "1536Mi"),
            ("500m", "0.5"),
            (".5", "0.5"),
            ("5.", "5"),
            ("1e3", "1k"),
            ("1E3", "1000"),
            ("1E", "1000P"),
            ("+7", "7"),
            ("-1", "-1000m"),
            ("2500u", "2.5m"),
        ] {
            assert_eq!(Quantity::parse(a), Quantity::parse(b), "{a} = {b}");
            assert!(Quantity::parse(a).is_some(), "{a}");
        }
        assert!(Quantity::parse("16Gi") > Quantity::parse("16G"));
        assert_eq!(Quantity::parse("8Ei").unwrap().as_integer(), None, "2^63 is one too many");
        assert_eq!(Quantity::parse("500m").unwrap().as_integer(), None);
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in ["", "Gi", "1.2.3", "1 Gi", "1Qi", "0x10", "1e", "one", "-", "."] {
            assert_eq!(Quantity::parse(text), None, "{text:?}");
        }
    }
}
