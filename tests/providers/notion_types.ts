// The requests fallow sends and the answers the fake gives, as the official client declares them. To check
// both against it, anywhere with Node, and then point NOTION_CLIENT_SCHEMA at the file:
//   npm install @notionhq/client@5.26.0 ts-json-schema-generator typescript
//   npx ts-json-schema-generator --path notion_types.ts --type '*' --no-type-check -o notion_schema.json
import type {
  CreatePageParameters,
  DataSourceObjectResponse,
  GetPagePropertyResponse,
  PageObjectResponse,
  QueryDataSourceParameters,
  QueryDataSourceResponse,
  UpdatePageParameters,
} from "@notionhq/client/build/src/api-endpoints"

export type QueryRequest = Omit<QueryDataSourceParameters, "data_source_id">
export type CreateRequest = CreatePageParameters
export type UpdateRequest = Omit<UpdatePageParameters, "page_id">
export type QueryAnswer = Omit<QueryDataSourceResponse, "results"> & { results: PageObjectResponse[] }
export type PageAnswer = PageObjectResponse
export type SourceAnswer = DataSourceObjectResponse
export type PropertyAnswer = GetPagePropertyResponse
