// Clocks and waits.

const FIRST_DELAY_MS = 200;
const LONGEST_DELAY_MS = 5_000;

/**
 * How long to wait after so many failures in a row.
 * @param {number} failures
 */
export function backoff(failures) {
  const longest = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** (failures - 1));
  return longest * (0.5 + Math.random() / 2);
}

/** Time in milliseconds that only goes forward. */
export function steady() {
  return performance.now();
}

/** @param {number} ms */
export function sleep(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/**
 * Keeps no process alive that has nothing else to do.
 * @template T
 * @param {T} timer
 * @returns {T}
 */
export function unref(timer) {
  /** @type {{ unref?: () => void }} */ (timer).unref?.();
  return timer;
}
