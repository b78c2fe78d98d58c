/** Regenerates docs/operate/configuration.md. */
import { writeFileSync } from 'node:fs';
import { referencePage } from '../config/reference.ts';

writeFileSync(new URL('../docs/operate/configuration.md', import.meta.url), referencePage());
