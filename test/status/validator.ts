/** Validates answers of the status API by its OpenAPI document. */
import assert from 'node:assert/strict';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { openApiText } from '../../scripts/openapi.ts';

type Schema = { properties?: object; additionalProperties?: boolean; [key: string]: unknown };

/** Validates answers. Unlike the document, it accepts no unknown field. */
export function validator() {
  const { components } = JSON.parse(openApiText()) as { components: { schemas: object } };
  const strict = JSON.parse(JSON.stringify(components.schemas), (_, value: Schema) => {
    if (value?.properties !== undefined) value.additionalProperties = false;
    return value;
  }) as object;
  const ajv = new Ajv2020({ strict: false, allErrors: true });
  return (type: string, value: unknown) => {
    const $ref = `#/components/schemas/${type}`;
    const isValid = ajv.validate({ $ref, components: { schemas: strict } }, value);
    assert.ok(isValid, `${type}: ${ajv.errorsText()}`);
  };
}

/** Media types of the answers and errors of each path, as the document describes them. */
export function mediaTypes(): Map<string, { readonly ok: string; readonly error: string }> {
  type Response = { content: object };
  type Path = { get: { responses: { 200: Response; default: Response } } };
  const { paths } = JSON.parse(openApiText()) as { paths: Record<string, Path> };
  const typeOf = ({ content }: Response) => Object.keys(content).join();
  return new Map(
    Object.entries(paths).map(([path, { get }]) => [
      path,
      { ok: typeOf(get.responses[200]), error: typeOf(get.responses.default) },
    ]),
  );
}
