import { readFileSync } from 'node:fs';

/** Version of the package. */
export const VERSION: string = (() => {
  const text = readFileSync(new URL('../package.json', import.meta.url), 'utf8');
  const { version } = JSON.parse(text) as { version: string };
  return version;
})();
