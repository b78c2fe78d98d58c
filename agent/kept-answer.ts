/** Answers of the status API that take long to find. */

/**
 * Keeps an answer for a while. One run at a time serves all callers, and an error is kept, too: a program that fails is
 * not started again and again.
 * @param maxAge milliseconds after the end of a run.
 * @param now milliseconds since 1970.
 */
export function keepAnswer<T>(
  run: () => Promise<T>,
  maxAge: number,
  now: () => number = Date.now,
): () => Promise<T> {
  let kept: { readonly answer: Promise<T>; endedAt: number | undefined } | undefined;
  return () => {
    const isOld = kept?.endedAt !== undefined && now() - kept.endedAt >= maxAge;
    if (kept !== undefined && !isOld) return kept.answer;
    const current: NonNullable<typeof kept> = { answer: run(), endedAt: undefined };
    kept = current;
    const onEnd = () => {
      current.endedAt = now();
    };
    current.answer.then(onEnd, onEnd);
    return current.answer;
  };
}
