/** Positions in the drawing of a packet's path. Pure. */

/** @typedef {{ readonly x: number, readonly y: number }} Place */

/** Size of a step, and the space for an arrow between two. */
export const BOX = { width: 186, height: 96, gap: 34 };
export const ENDPOINT_HEIGHT = 44;
const ENDPOINT_GAP = 8;

/**
 * Places the steps in a row, or from top to bottom if it is narrow, and the endpoints after the last step.
 * @param {number} count of steps @param {number} endpoints @param {boolean} isNarrow
 */
export function layout(count, endpoints, isNarrow) {
  const { width, height, gap } = BOX;
  const step = isNarrow ? height + gap : width + gap;
  const stack = endpoints * (ENDPOINT_HEIGHT + ENDPOINT_GAP) - ENDPOINT_GAP;
  const boxes = Array.from({ length: count }, (_, index) =>
    isNarrow
      ? { x: 0, y: index * step }
      : { x: index * step, y: Math.max(0, (stack - height) / 2) },
  );
  const from = count * step;
  const first = isNarrow ? from : Math.max(0, (height - stack) / 2);
  const ends = Array.from({ length: endpoints }, (_, index) => ({
    x: isNarrow ? 0 : from,
    y: first + index * (ENDPOINT_HEIGHT + ENDPOINT_GAP),
  }));
  const across = endpoints > 0 ? from + width : from - gap;
  return isNarrow
    ? { boxes, ends, width, height: endpoints > 0 ? from + stack : from - gap }
    : { boxes, ends, width: across, height: Math.max(height, stack) };
}
