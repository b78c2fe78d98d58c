/** Templates: `html` makes elements of tagged templates. Values become text, never markup. */
import htm from './htm.js';
import { h } from './preact.js';

export const html = htm.bind(h);
