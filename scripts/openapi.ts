/** Writes `status/openapi.json`: the paths of the status API, and JSON Schemas of the types in `status/api/`. */
import { readFileSync, writeFileSync } from 'node:fs';
import { createGenerator } from 'ts-json-schema-generator';
import { statusResources } from '../status/resources.ts';
import type { StatusSources } from '../status/sources.ts';

const FILE = new URL('../status/openapi.json', import.meta.url);
const root = new URL('..', import.meta.url).pathname;

/** The document as text. */
export function openApiText(): string {
  const generator = createGenerator({
    path: `${root}status/api/*.ts`,
    tsconfig: `${root}tsconfig.json`,
    type: '*',
    expose: 'export',
    encodeRefs: false,
    sortProps: false,
    jsDoc: 'basic',
    // Later versions may add fields.
    additionalProperties: true,
    // `make lint` checks types.
    skipTypeCheck: true,
  });
  const { definitions } = generator.createSchema('*');
  // The definitions of the resources do not read the sources.
  const resources = statusResources({ table: {}, policy: {} } as StatusSources);
  const document = {
    openapi: '3.1.0',
    info: {
      title: 'Portwide status API',
      version: 'v1',
      description: 'Read-only API of the agent of one node. Clients must ignore unknown fields.',
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    paths: Object.fromEntries(
      Object.entries(resources).map(
        ([path, { summary, response, mediaType, parameters, version }]) => [
          path,
          {
            get: {
              summary,
              parameters: [
                ...[...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({
                  name,
                  in: 'path',
                  required: true,
                  schema: { type: 'string' },
                })),
                ...Object.entries(parameters).map(([name, { schema }]) => ({
                  name,
                  in: 'query',
                  schema,
                })),
              ],
              responses: {
                200: answer(summary, response, mediaType),
                ...(version === undefined ? {} : { 304: { description: NOT_MODIFIED } }),
                default: answer('Error', 'ErrorBody', 'application/json'),
              },
            },
          },
        ],
      ),
    ),
    components: { schemas: Object.fromEntries(Object.entries(definitions ?? {}).sort()) },
  };
  const text = JSON.stringify(document, undefined, 1);
  // OpenAPI allows no angle brackets in names: `Page<Service>`.
  const named = text.replaceAll(/\b(\w+)<(\w+)>/g, '$1Of$2');
  return `${named.replaceAll('#/definitions/', '#/components/schemas/')}\n`;
}

const NOT_MODIFIED = 'The answer is as If-None-Match says: nothing changed';

function answer(description: string, type: string | undefined, mediaType: string) {
  const schema = type === undefined ? {} : { $ref: `#/definitions/${type}` };
  return { description, content: { [mediaType]: { schema } } };
}

if (import.meta.main) {
  const text = openApiText();
  if (text !== readFileSync(FILE, { encoding: 'utf8', flag: 'a+' })) writeFileSync(FILE, text);
}
