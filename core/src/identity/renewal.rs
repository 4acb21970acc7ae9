/// When a certificate that is valid from `not_before` to `not_after` (Unix seconds) is renewed: at two thirds of its life
/// at the latest. `jitter`, 0 to 1, moves it forward by up to a fifteenth, so that a clique that came up together does not
/// ask together.
pub fn renew_at(not_before: i64, not_after: i64, jitter: f64) -> i64 {
    let life = not_after.saturating_sub(not_before).max(0);
    let early = life as f64 / 15.0 * jitter.clamp(0.0, 1.0);
    not_before.saturating_add(life / 3 * 2).saturating_sub(early as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3600;

    #[test]
    fn it_is_due_at_two_thirds_or_a_little_before() {
        assert_eq!(renew_at(1000, 1000 + 9 * DAY, 0.0), 1000 + 6 * DAY);
        assert_eq!(renew_at(0, 15 * DAY, 1.0), 9 * DAY);
        for jitter in [0.0, 0.3, 1.0, 7.0, f64::NAN] {
            let at = renew_at(0, 9 * DAY, jitter);
            assert!((5 * DAY..=6 * DAY).contains(&at), "{jitter}: {at}");
        }
    }

    #[test]
    fn one_with_no_life_is_due_at_once() {
        assert_eq!(renew_at(100, 100, 0.5), 100);
        assert_eq!(renew_at(100, 50, 0.5), 100);
    }
}
